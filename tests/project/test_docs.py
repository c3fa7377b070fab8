"""The documentation: it builds strictly, every page is listed, and its commands are real."""

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

from support.manual import mentioned_commands, whole_commands, wrong
from support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    Path("deploy/README.md"),
    *(path.relative_to(ROOT) for path in sorted(DOCS.rglob("*.md"))),
]
# This page shows the shape of each command, which is no command.
CALLS = [page for page in PAGES if page.name != "commands.md"]
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
    shown = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert done.returncode == 0, shown
    page = (tmp_path / "site" / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert "losses" in page


@pytest.mark.parametrize("page", CALLS, ids=str)
def test_every_command_of_a_page_exists(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [wrong(words, True) for words in whole_commands(text)]
    found += [wrong(words, False) for words in mentioned_commands(text)]
    assert [line for line in found if line] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    names = re.findall(r"\b((?:bench|examples|experiments|results|deploy|tests)/[\w./-]*\w)", text)
    wanted = [name for name in names if "NAME" not in name]
    assert [name for name in wanted if not list(ROOT.glob(f"{name}*"))] == []


def test_the_check_of_manuals_sees_commands_and_what_is_wrong_with_them() -> None:
    block = "  sudo -u fedrfq /opt/fedrfq/bin/fedrfq run --seed 1   # all\npodman fedrfq\n"
    text = f"Do `fedrfq verify`:\n  ```sh\n{block}```\n"
    assert whole_commands(text) == [["run", "--seed", "1"]]
    assert mentioned_commands(text) == [["verify"]]
    assert not wrong(["run", "--seed", "1"], True)
    for words in (["nothing"], ["run", "--sed", "1"], ["verify"], ["security", "DIR"]):
        assert wrong(words, True)


def test_alarms_are_those_that_servers_raise() -> None:
    sources = "".join(
        path.read_text()
        for part in ("node", "consensus")
        for path in sorted((ROOT / "src/fedrfq" / part).rglob("*.py"))
    )
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs/guides/operate.md").read_text().splitlines()
        if line.startswith("|")
    ]
    metrics = re.findall(r"fedrfq_(\w+)", "".join(rows))
    said = re.findall(r'"([^"]+)"', "".join(rows))
    assert len(metrics) > 10
    assert len(said) > 8
    assert [name for name in metrics if name not in sources] == []
    assert [words for words in said if words not in sources] == []


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"]
)
def test_links_of_the_front_pages_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert targets
    folder = (ROOT / name).parent
    assert [target for target in targets if not (folder / target).exists()] == []


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
