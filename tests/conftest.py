"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
import torch

pytest_plugins = ["harness.pytest_plugin"]


def pytest_collection_finish() -> None:
    """Let no collection of a test look at what importing and collecting the tests made."""
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let each test draw the same numbers, whatever ran before it."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
