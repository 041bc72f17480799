"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import random
from collections.abc import Generator

import numpy as np
import pytest
import torch

pytest_plugins = ["harness.pytest_plugin"]


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Use one worker more than there are cores: some test waits for ranks at any time."""
    return (yield) + 1


def pytest_collection_finish() -> None:
    """Let no collection of a test look at what importing and collecting the tests made."""
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let each test draw the same numbers, whatever ran before it."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
