"""Each test has a configuration folder of its own, and leaves no plugin behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.outside import new_process


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    new_process()
    yield
    new_process()
