"""Each test has a configuration folder of its own, and leaves no plugin behind."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _apart(apart: None) -> None:
    """Keep all tests of this folder apart."""
