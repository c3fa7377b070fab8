"""What can be configured: `fedrfq config` and `fedrfq list`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedrfq import plugins
from fedrfq.cli.completion import complete
from fedrfq.cli.options import Modules, Sets
from fedrfq.cli.run import File, read_experiment
from fedrfq.cli.terminal import say, wide_console
from fedrfq.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fedrfq.files.options import Described

# What can be listed, and the kind of plugin that may add to it; none makes committees.
_KINDS = {
    "methods": "method",
    "attacks": "attack",
    "detectors": "detector",
    "rules": "rule",
    "committees": "",
    "models": "model",
    "data": "dataset",
    "partitions": "partition",
    "pools": "pooling",
    "public": "public-map",
    "adversaries": "adversary",
    "trackers": "tracker",
}
_MAX_RANGE_WIDTH = 40


def config(
    file: File = None,
    sets: Sets = None,
    describe: Annotated[
        bool,
        typer.Option(
            "--describe",
            help="Print a table of every key with its default, its range and what it means; "
            "of one section if its name stands in place of the file.",
        ),
    ] = False,
    module: Modules = None,
) -> None:
    """Print an experiment as TOML, with the value that every key will have.

    The output is itself an experiment file. With --describe, print what can be set instead.

    Example: fedrfq config --set data.name=mnist > mine.toml

    Example: fedrfq config --describe public
    """
    from fedrfq.files import toml

    if describe:
        console = wide_console()
        section = ""
        if file is not None:
            section = str(file)
        console.print(_key_table(section))
        say(console, "Set a key with --set KEY=VALUE, or in the TOML file of the experiment.")
        return
    experiment, _ = read_experiment(file, sets or [], None, module or [])
    sys.stdout.write(toml.dump(experiment.table()))


class _Key(NamedTuple):
    """One configuration key, as the table shows it."""

    key: str
    default: str
    range: str
    help: str


def _key_table(only: str) -> Table:
    """Return the table of all keys, or of those in one section."""
    heads = sorted({key.key.rpartition(".")[0] for key in _keys()} - {""})
    if only and only not in heads:
        raise UserError(
            f"--describe takes a section's name, not '{only}': choose one of {', '.join(heads)}, "
            f"or leave it out for all keys{did_you_mean(only, heads)}"
        )
    table = Table(
        Column("key", no_wrap=True),
        Column("default", overflow="fold"),
        Column("range", max_width=_MAX_RANGE_WIDTH),
        "description",
    )
    section = ""
    for key in _keys():
        head = key.key.rpartition(".")[0]
        if only and head != only:
            continue
        if head != section:
            table.add_section()
            section = head
        # As a plain string, a range such as "[0, 1]" would be taken for markup.
        table.add_row(*map(Text, key))
    return table


def _keys() -> Iterator[_Key]:
    """Yield the top-level keys, then those of each section."""
    from fedrfq.experiment import Experiment
    from fedrfq.files.options import described

    sections = []
    for option in described(Experiment):
        # A section is a key whose default is itself a dataclass.
        if is_dataclass(option.default):
            sections.append(option)
        else:
            yield _key(option)
    for section in sections:
        yield from _section_keys(section)


def _section_keys(section: Described) -> Iterator[_Key]:
    from fedrfq.files.options import described

    kinds = _registries().get(section.name)
    if kinds is None:
        for option in described(type(section.default)):
            yield _key(option, section.name)
        return
    default = next(kind for kind, cls in kinds.items() if cls is type(section.default))
    choices = f"one of {', '.join(kinds)}"
    yield _Key(f"{section.name}.name", _default(default), choices, section.help)
    # Kinds may have a key of the same name with another default; that gets a row of its own.
    owners: dict[_Key, list[str]] = {}
    for kind, cls in kinds.items():
        for option in described(cls):
            owners.setdefault(_key(option, section.name), []).append(kind)
    for key, names in owners.items():
        if len(names) == len(kinds):
            yield key
        else:
            yield key._replace(help=f"{key.help} (only for {', '.join(names)})")


def _key(option: Described, section: str = "") -> _Key:
    name = option.name
    if section:
        name = f"{section}.{option.name}"
    return _Key(name, _default(option.default), option.range, option.help)


def _default(value: Any) -> str:
    """Return a default as it would be written in TOML; "required" where there is none."""
    if value is MISSING:
        return "required"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if value == ():
        return "none"
    return str(value)


def _registries() -> Mapping[str, Mapping[str, type[Any]]]:
    """Return the sections that name a kind, with the kinds they can name."""
    from fedrfq.experiment.kinds import KINDS

    return KINDS


def list_(
    what: Annotated[
        str,
        typer.Argument(
            help=f"What to list: {', '.join(_KINDS)}.",
            autocompletion=complete(lambda: _KINDS),
        ),
    ] = "methods",
) -> None:
    """List the names that an experiment can use, such as those of methods or datasets.

    Example: fedrfq list attacks
    """
    if what not in _KINDS:
        raise UserError(
            f"cannot list '{what}': choose one of {', '.join(_KINDS)}{did_you_mean(what, _KINDS)}"
        )
    plugins.load_installed()
    sources = plugins.sources(_KINDS[what])
    table = Table(what, "description")
    if sources:
        table.add_column("from")
    for name, text in _names(what).items():
        table.add_row(name, text, sources.get(name, "fedrfq"))
    Console(markup=False).print(table)
    for why in plugins.broken():
        say(Console(stderr=True), f"note: {why}")


def _names(what: str) -> dict[str, str]:
    """Return the names of one kind of thing, with a few words on each."""
    if what == "committees":
        registry = _registries()["committee"]
    else:
        registry = plugins.REGISTRIES[_KINDS[what]].entries()
    return {name: _words_on(what, thing) for name, thing in registry.items()}


def _words_on(what: str, thing: Any) -> str:
    if what == "data":
        return str(thing.description)
    if what in ("pools", "partitions", "adversaries"):
        return _first_line(thing)
    if what == "rules":
        return _words_on_rule(thing)
    # The others have a module each, which begins with the paper and the idea.
    return _first_paragraph_of_module(thing) or _first_line(thing)


def _words_on_rule(rule: Any) -> str:
    from fedrfq.robust.centres import CENTRES

    # Those of the package differ in the centre that they compute.
    return _first_line(CENTRES.get(getattr(rule, "centre", ""), type(rule)))


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").split("\n")[0]


def _first_paragraph_of_module(cls: type) -> str:
    text = sys.modules[cls.__module__].__doc__ or ""
    return text.strip().split("\n\n")[0].replace("\n", " ")
