"""Write a plugin that runs, and its test, from the templates beside this file.

In a template, `example-method`, `ExampleMethod` and `example_method` stand for the user's name.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.plugins.known import check_free
from fedrfq.plugins.registering import check_kind, check_name

_TEMPLATES = Path(__file__).parent / "templates"
# By kind, the settings with which an experiment uses something of that name.
_SETTINGS = {
    "method": "method.name={name}",
    "attack": "attack.name={name} attack.clients=4",
    "detector": "detector.name={name} committee.name=simulated",
    "rule": "method.name=fedproto method.aggregate={name} committee.name=simulated",
    "model": "model.name={name}",
    "public-map": "public.name={name}",
    "dataset": "data.name={name}",
    "partition": "partition.name={name}",
    "pooling": "pool.name={name}",
    "adversary": "committee.name=simulated committee.faulty=1 committee.behaviour={name}",
    "tracker": "track={name}",
}


def example_settings(kind: str, name: str) -> list[str]:
    """Return options of `fedrfq run` that use a plugin's thing."""
    settings = _SETTINGS[kind].format(name=name).split()
    return [word for setting in settings for word in ("--set", setting)]


def write(kind: str, name: str, folder: Path) -> tuple[Path, Path]:
    """Write a plugin and its test into a folder; return their paths. Nothing is overwritten."""
    check_kind(kind)
    check_name(kind, name)
    check_free(kind, name)
    stem = re.sub(r"[^a-z0-9]", "_", name)
    pair = (folder / f"{stem}.py", folder / f"test_{stem}.py")
    for path in pair:
        if path.exists():
            raise UserError(f"{path} is there already: choose another name, or another --out")
    template = kind.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in zip(pair, (template, f"test_{template}"), strict=True):
        text = (_TEMPLATES / f"{source}.py.txt").read_text(encoding="utf-8")
        # "x": a file that has come in between is not overwritten either.
        with path.open("x", encoding="utf-8") as file:
            file.write(_named(text, kind, name, stem))
    return pair


def _named(text: str, kind: str, name: str, stem: str) -> str:
    """Return a template's text with the example's names replaced."""
    example = f"example-{kind.removeprefix('public-')}"
    for before, after in (
        (example, name),
        (example.replace("-", "_"), stem),
        (_class_name(example), _class_name(name)),
    ):
        text = text.replace(before, after)
    return text


def _class_name(name: str) -> str:
    joined = "".join(word.capitalize() for word in re.split(r"[^a-z0-9]+", name))
    # A class cannot begin with a digit.
    return joined if joined[:1].isalpha() else f"Own{joined}"
