"""The documentation: built strictly, every page listed, generated pages up to date, commands real."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

DOCS = ROOT / "docs"
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def listed(entries: list[Any]) -> list[str]:
    """Return all pages of a navigation, in order."""
    pages: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            pages.append(entry)
        else:
            for inner in entry.values():
                pages += listed(inner if isinstance(inner, list) else [inner])
    return pages


def test_every_page_is_listed_once() -> None:
    pages = listed(SITE["nav"])
    assert len(set(pages)) == len(pages)
    assert set(pages) == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, DOCS / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert "losses" in page


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_front_pages_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_readme_is_short() -> None:
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    assert len(words) < 1100


def test_every_file_of_a_run_is_described(whole: Path) -> None:
    text = (DOCS / "reference" / "run-directory.md").read_text(encoding="utf-8")
    for path in whole.iterdir():
        name = re.sub(r"\d+", "N", path.name)
        assert f"`{name}`" in text, path.name


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {project['version']}\n" in citation
    assert json.dumps(project["version"]).strip('"') in (ROOT / "CHANGELOG.md").read_text()
