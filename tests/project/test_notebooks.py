"""The notebooks run to their end, cell by cell, as a new reader would run them."""

import json

import pytest

from fedrfq.methods import METHODS
from support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # What a notebook registers is gone after it.
    before = dict(METHODS)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    scope = {"__name__": "__main__"}
    try:
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), path.name, "exec"), scope)
    finally:
        for name in set(METHODS) - set(before):
            del METHODS[name]
    assert capsys.readouterr().out


def test_there_are_six_without_stored_outputs():
    assert len(NOTEBOOKS) == 6
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells)
