"""Processes that this program starts import nothing from the current folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedrfq.node.ops.child_processes import fedrfq_command
from fedrfq.report import vega


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with modules that leave a mark when they are imported."""
    for name in ("typer", "json", "numpy", "vl_convert", "altair"):
        (tmp_path / f"{name}.py").write_text("open('mark', 'w')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_child_imports_nothing_from_the_current_folder(hostile: Path) -> None:
    subprocess.run(fedrfq_command("--version"), check=True, capture_output=True)
    assert not (hostile / "mark").exists()


def test_the_builder_of_pages_imports_nothing_from_the_current_folder(hostile: Path) -> None:
    with vega.programming() as program:
        assert program()
    assert not (hostile / "mark").exists()
