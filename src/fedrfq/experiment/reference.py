"""Every configuration key with its section, type, default, range and description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fedrfq.engine.program import TrainingOptions
from fedrfq.experiment.experiment import Cohort, Data, Experiment
from fedrfq.experiment.kinds import DEFAULT_KINDS, KINDS, SECTIONS
from fedrfq.files.options import described, one_of
from fedrfq.models import MODELS
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.pooling import Pool

_PLAIN = {"data": Data, "pool": Pool, "train": TrainingOptions, "privacy": Privacy}


class ConfigKey(NamedTuple):
    """One key that an experiment file may set."""

    section: str  # "" for top-level keys
    kind: str  # the `name` of the section that the key belongs to; "" where it always applies
    key: str
    type: str
    default: Any  # dataclasses.MISSING where a value must be given
    range: str
    help: str


def all_options() -> list[ConfigKey]:
    """Return every configuration key: the top-level ones, then section by section, kind by kind."""
    keys = [key for key in _keys("", "", Experiment) if key.key not in SECTIONS]
    for section in sections():
        keys += _section_keys(section)
    return keys


def sections() -> dict[str, str]:
    """Return the description of every section, in the order of the experiment's fields."""
    return {option.name: option.help for option in described(Experiment) if option.name in SECTIONS}


def _section_keys(section: str) -> Iterator[ConfigKey]:
    if section in _PLAIN:
        yield from _keys(section, "", _PLAIN[section])
    elif section == "cohorts":
        yield from _cohort_keys()
    else:
        kinds = KINDS[section]
        yield ConfigKey(
            section,
            "",
            "name",
            "str",
            DEFAULT_KINDS[section],
            one_of(kinds),
            f"Which {section} it is; each has its own keys",
        )
        for name, kind in kinds.items():
            yield from _keys(section, name, kind)


def _cohort_keys() -> Iterator[ConfigKey]:
    """Yield the keys of [[cohorts]], where a model is given by its name and its keys."""
    for key in _keys("cohorts", "", Cohort):
        if key.key != "model":
            yield key
    yield ConfigKey(
        "cohorts",
        "",
        "name",
        "str",
        DEFAULT_KINDS["model"],
        one_of(MODELS),
        "The model they hold, model.name if not set; the keys of [model] may follow",
    )


def _keys(section: str, kind: str, cls: type[Any]) -> Iterator[ConfigKey]:
    for option in described(cls):
        yield ConfigKey(
            section, kind, option.name, option.type, option.default, option.range, option.help
        )
