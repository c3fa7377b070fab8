"""Run the contracts of all that a plugin registers, and say for each whether it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedrfq.api.contracts.contract import Broken, Check
from fedrfq.errors import UserError
from fedrfq.files.options import described
from fedrfq.plugins import Plugin, load_installed, load_plugin
from fedrfq.plugins.known import LOADED
from fedrfq.plugins.loading import place_in

# By kind, where its checks are; a server without PyTorch can check a detector.
_CONTRACTS: Mapping[str, tuple[str, str]] = {
    "method": ("methods", "METHOD_CHECKS"),
    "attack": ("attacks", "ATTACK_CHECKS"),
    "detector": ("deciding", "DETECTOR_CHECKS"),
    "rule": ("deciding", "RULE_CHECKS"),
    "model": ("models", "MODEL_CHECKS"),
    "public-map": ("models", "PUBLIC_MAP_CHECKS"),
    "dataset": ("data", "DATASET_CHECKS"),
    "partition": ("data", "PARTITION_CHECKS"),
    "pooling": ("models", "POOLING_CHECKS"),
    "adversary": ("runs", "ADVERSARY_CHECKS"),
    "tracker": ("runs", "TRACKER_CHECKS"),
}


@dataclass(frozen=True)
class Finding:
    """Whether something holds for what a plugin registers; `found` says what is not as it should.

    Where it holds, `found` is a remark, or empty.
    """

    kind: str
    name: str
    check: str
    holds: bool
    found: str = ""


def checks(kind: str) -> tuple[Check, ...]:
    """Return the checks that everything of a kind must pass."""
    module, name = _CONTRACTS[kind]
    found: tuple[Check, ...] = getattr(import_module(f"fedrfq.api.contracts.{module}"), name)
    return found


def check_plugin(path: Path | str) -> list[Finding]:
    """Load a plugin's file and return what was found of all that it registers."""
    plugin = load_plugin(path)
    return list(findings(plugin, str(path)))


def check_package(name: str) -> list[Finding]:
    """Return what was found of all that an installed package registers."""
    load_installed()
    for plugin in LOADED.values():
        if plugin.name == f"package {name}":
            return list(findings(plugin, ""))
    raise UserError(
        f"there is no plugin file and no installed package of plugins named '{name}': check the "
        "path, or pip install it"
    )


def findings(plugin: Plugin, path: str) -> Iterator[Finding]:
    """Yield what is found, check by check."""
    for (kind, name), value in plugin.entries.items():
        yield _options(kind, name, value)
        for check in checks(kind):
            holds, found = _outcome(check, name, path)
            yield Finding(kind, name, _words(check), holds, found)


def _outcome(check: Check, name: str, path: str) -> tuple[bool, str]:
    try:
        return True, check(name) or ""
    except Broken as broken:
        return False, str(broken)
    # The plugin's own code fails, in whatever way.
    except (Exception, SystemExit) as error:
        return False, f"{place_in(error, path)}{type(error).__name__}: {error}".splitlines()[0]


def _words(check: Check) -> str:
    return (check.__doc__ or check.__name__).split("\n")[0].rstrip(".")


def _options(kind: str, name: str, value: Any) -> Finding:
    """Find out whether every option of something has words on what it does."""
    words = "Each of its options has a description"
    cls = value if isinstance(value, type) else type(value)
    # A rule is chosen by its name alone, so that an experiment cannot set its fields.
    if kind in ("dataset", "rule") or not is_dataclass(cls):
        return Finding(kind, name, words, True, "it has no options")
    without = [option.name for option in described(cls) if not option.help]
    if without:
        remedy = (
            "write NAME: TYPE = option(DEFAULT, 'What it does', 'its range'), "
            "with option from fedrfq.files.options"
        )
        return Finding(kind, name, words, False, f"{', '.join(without)} has none: {remedy}")
    return Finding(kind, name, words, True)
