"""The sections of an experiment whose `name` chooses one of several kinds, and those kinds."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from fedrfq import plugins
from fedrfq.committee import COMMITTEES
from fedrfq.data.partition import PARTITIONS
from fedrfq.errors import UserError
from fedrfq.methods import METHODS
from fedrfq.models import MODELS
from fedrfq.models.any_module import AnyModule
from fedrfq.models.public_maps import PUBLIC_MAPS
from fedrfq.robust.attacks import ATTACKS
from fedrfq.robust.detectors import DETECTORS

# By section, the dataclass of each kind. The order is that of the written TOML file, which is
# hashed: a new section goes last.
KINDS: Mapping[str, Mapping[str, type[Any]]] = {
    "partition": PARTITIONS,
    # A module of the user's own has a name here, though it is not among the models by name.
    "model": ChainMap(MODELS, {"module": AnyModule}),
    "method": METHODS,
    "attack": ATTACKS,
    "detector": DETECTORS,
    "committee": COMMITTEES,
    "public": PUBLIC_MAPS,
}
DEFAULT_KINDS: Mapping[str, str] = {
    "partition": "classes",
    "model": "cnn",
    "method": "fedrfq",
    "attack": "none",
    "detector": "none",
    "committee": "direct",
    "public": "none",
}
# Sections without a choice of kinds: their keys are the fields of one dataclass.
PLAIN_SECTIONS = ("data", "pool", "train", "privacy")
SECTIONS = (*PLAIN_SECTIONS, *KINDS, "cohorts")


def name_of(kinds: Mapping[str, type[Any]], value: object) -> str:
    """Return the name under which a registry holds the value's class."""
    for name, kind in kinds.items():
        if kind is type(value):
            return name
    # A newer version of a plugin may have taken its name.
    name_before = plugins.name_of(type(value))
    if name_before is None:
        raise UserError(
            f"{type(value).__qualname__} has no name: register it with fedrfq.register first"
        )
    return name_before
