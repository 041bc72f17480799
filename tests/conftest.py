"""Fixtures that all tests share."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

pytest_plugins = ["harness.pytest_plugin"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let each test draw the same numbers, whatever ran before it."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
