"""A study: one TOML file that says which runs to train, and how their results are shown.

    name = "mine"         the folder of its results; the file's own name if not given
    kind = "figure"       how it is shown (see kinds.py in fedrfq.paper); the commands `compare`
                          and `robustness` need none
    title = "Figure 8: …" optional
    claim = "…"           optional: what the paper says, in one line
    seeds = 5             how many: 0, 1, … 4; or a list of seeds
    [experiment]          shared by all runs: any keys of an experiment but name and seed
    [axes.method.fedrfq]  what differs between runs: axes, their labels, what each changes (axes.py)
    [[claims]]            what is said of the labels, to be judged by the runs (claims.py)
    [quick]               what --quick changes, so that the study takes minutes on two cores

The other keys belong to the kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError, did_you_mean
from fedrfq.files import toml
from fedrfq.files.toml import Table

_COMMANDS = ("compare", "robustness")  # the kinds that have a command of their own
_COMMON_KEYS = ("name", "title", "kind", "claim", "seeds", "quick")
# Keys of files from before there were axes.
_NOW_AXES = {
    "settings": "setting",
    "methods": "method",
    "attacks": "attack",
    "detectors": "detector",
    "attackers": "attackers",
}
# Where `experiments/` is: in an installed package, and in a checkout.
_PLACES = (Path(__file__).parents[1] / "experiments", Path(__file__).parents[3] / "experiments")
_NOT_STUDIES = ("paper",)  # the figures that the paper prints


@dataclass(frozen=True)
class Study:
    """A study as it was read: what all kinds share, and the rest as a table for its kind."""

    name: str
    title: str
    claim: str
    kind: str
    seeds: tuple[int, ...]
    table: Table
    runs: str  # the name of its runs, and of the folder that they lie in

    @staticmethod
    def load(
        source: str | Path | Mapping[str, Any],
        quick: bool = False,
        seeds: int | None = None,
        only: Mapping[str, Sequence[str]] | None = None,
        *,
        kind: str = "",
        runs: str = "",
        changes: Mapping[str, Any] | None = None,
    ) -> Study:
        """Read a study by its name in `experiments/`, by the path to a file, or from a table.

        `seeds` replaces the file's number of seeds, `only` restricts axes to some labels, and
        `changes` replaces other keys. `kind` is the kind that the study must have, and need not
        name; `runs` is the name of the runs, where it is not that of the study.
        """
        if isinstance(source, Mapping):
            table = dict(source)
            source = "study"
        else:
            source = str(source)
            table = toml.read(find(source))
        quick_changes = section(table, "quick")
        if quick:
            table = _quickened(table, quick_changes)
        table = {**table, **(changes or {})}
        # After [quick], which may have its own `only`: the caller's choice counts.
        if only:
            labels = {axis: list(chosen) for axis, chosen in only.items()}
            table = toml.merge(table, {"only": labels})
        # The name becomes a folder, so characters that a folder cannot have are replaced.
        name = _text(table, "name", re.sub(r"[^\w .-]", "-", Path(source).stem))
        if quick:
            name += "-quick"
        if kind and table.get("kind", kind) != kind:
            command = "reproduce"
            if table["kind"] in _COMMANDS:
                command = table["kind"]
            raise UserError(
                f"{source} is a study of the kind {table['kind']!r}, not {kind!r}; carry it out "
                f"with: fedrfq {command} {source}"
            )
        return Study(
            name=name,
            title=_text(table, "title", name),
            claim=_text(table, "claim", ""),
            kind=_text(table, "kind", kind),
            seeds=_seeds(table, seeds),
            table={key: value for key, value in table.items() if key not in _COMMON_KEYS},
            runs=runs or name,
        )

    @property
    def papers_claim(self) -> str:
        """The paper's claim as a line to print; empty if the study has none."""
        if not self.claim:
            return ""
        return f"The paper: {self.claim}"

    def check_keys(self, names: Sequence[str]) -> None:
        """Refuse keys of the file that are neither those of all studies nor among these."""
        # Imported here: those who look only at a study's title need no PyTorch.
        from fedrfq.experiment import check_keys

        for key, axis in _NOW_AXES.items():
            if key in self.table:
                raise UserError(
                    f"{key} are an axis now: write axes.{axis} = […] or [axes.{axis}.…]"
                )
        check_keys(self.table, [*_COMMON_KEYS, *names], "")


def _quickened(table: Table, changes: Mapping[str, Any]) -> Table:
    """Return a study's table with what [quick] changes, such as one model for another."""
    from fedrfq.experiment.reading import without_replaced_kinds

    before = table.get("experiment")
    after = changes.get("experiment")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        table = {**table, "experiment": without_replaced_kinds(dict(before), after)}
    return toml.merge(table, changes)


def _text(table: Table, key: str, default: str) -> str:
    text = table.get(key, default)
    if not isinstance(text, str):
        raise UserError(f"{key} must be a line of text in quotes, not {text!r}")
    return text


def _seeds(table: Table, given: int | None) -> tuple[int, ...]:
    seeds = table.get("seeds", 1)
    if given is not None:
        seeds = given
    if isinstance(seeds, list):
        return whole_numbers(table, "seeds", 0, "[0, 1, 2]")
    # type() and not isinstance(): True is an int too.
    if type(seeds) is not int or seeds < 1:
        raise UserError(
            f"seeds must be how many seeds to run, such as 5, or a list of seeds, not {seeds!r}"
        )
    return tuple(range(seeds))


def section(table: Mapping[str, Any], key: str) -> Table:
    """Return the section `key` of a table, empty if it is not there."""
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise UserError(f"{key} must be a section, [{key}], not the value {value!r}")
    return dict(value)


def whole_numbers(
    table: Mapping[str, Any], key: str, minimum: int, example: str
) -> tuple[int, ...]:
    """Return the non-empty list of distinct integers of at least `minimum` under `key`."""
    values = table.get(key)
    # type() and not isinstance(): True is an int too, and not a number of anything.
    if (
        not isinstance(values, list)
        or not values
        or any(type(value) is not int or value < minimum for value in values)
    ):
        raise UserError(
            f"{key} must be a list of integers of at least {minimum}, such as {example}, "
            f"not {values!r}"
        )
    check_distinct(values, key)
    return tuple(values)


def check_distinct(values: Sequence[Any], key: str) -> None:
    """Refuse a list that has a value twice."""
    for value in values:
        if list(values).count(value) > 1:
            raise UserError(f"{key} has {value!r} more than once; remove the repetition")


def folder() -> Path:
    """Return the folder of studies, beside the installed program or in its checkout."""
    for place in _PLACES:
        if place.is_dir():
            return place
    raise UserError(
        "the studies (experiments/) are not installed with the program; give the path to a study"
    )


def names() -> list[str]:
    """Return the names of all studies in `experiments/`, sorted."""
    return sorted(path.stem for path in folder().glob("*.toml") if path.stem not in _NOT_STUDIES)


def find(name: str) -> Path:
    """Return the path of a study, given its name or its path."""
    if Path(name).suffix or Path(name).is_file():
        if not Path(name).is_file():
            raise UserError(
                f"there is no study {name}; start from a copy of examples/compare.toml, "
                "examples/robustness.toml, or a file of experiments/"
            )
        return Path(name)
    known = names()
    if name not in known:
        raise UserError(
            f"there is no study '{name}'{did_you_mean(name, known)}; "
            f"choose one of {', '.join(known)}"
        )
    return folder() / f"{name}.toml"
