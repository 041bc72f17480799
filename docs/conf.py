"""How Sphinx builds the documentation site from the Markdown pages and the docstrings."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from wcn_ckpt import __version__  # noqa: E402

project = "wcn-ckpt"
author = "The wcn-ckpt authors"
release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_heading_anchors = 4
# Pages of benchmarks take these in as they are.
exclude_patterns = ["_build", "performance/*.md"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
# Docstrings say code in single backticks, as Markdown does.
default_role = "code"

html_theme = "furo"
html_title = "wcn-ckpt"
