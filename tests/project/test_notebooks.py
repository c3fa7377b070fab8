"""The notebooks run to their end, cell by cell, and print what their pages show."""

import importlib.util
import re

import pytest

from fedrfq.report import comparison_page
from fedrfq.runs.find_runs import runs_in
from support import notebooks
from support.paths import ROOT


def words(text):
    """Return a text without its numbers, whose last digits depend on the processor."""
    return re.sub(r"[\d.]+", "0", text).split()


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows_and_leaves_runs_that_can_be_read(
    path, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    notebook = notebooks.read(path)
    shown = [notebooks.output(cell) for cell in notebooks.code(notebook)]
    printed = notebooks.printed(notebook)
    assert [words(text) for text in printed] == [words(text) for text in shown]
    assert any(printed)
    page = comparison_page.page(runs_in([tmp_path / "runs"]))
    assert all("register it in this notebook first" in line for line in page.left_out)


def test_jupyter_itself_finds_the_source_of_a_method(tmp_path):
    """In a real kernel, which the other tests only do as if."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    path = next(path for path in notebooks.NOTEBOOKS if path.stem == "own-method")
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=folder
    ).execute()
    shown = [cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"]
    assert shown[-1][0]["text"] == "notebook method pull\n"


def test_there_are_six_with_their_outputs():
    assert len(notebooks.NOTEBOOKS) == 6


def test_every_page_leads_to_colab():
    """To the notebook itself once the project is on GitHub, which pyproject.toml would say."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for path in notebooks.NOTEBOOKS:
        page = path.with_suffix(".md").read_text()
        assert re.search(r"\]\(https://colab\.research\.google\.com/.*\(untested\)", page), path
    link = generate.colab("quickstart.ipynb", "https://github.com/some/fedrfq/")
    start = "[open it in Colab](https://colab.research.google.com/github/some/fedrfq/blob/main/"
    assert link == f"{start}docs/notebooks/quickstart.ipynb) (untested)"
