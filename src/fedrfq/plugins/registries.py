"""The kinds of things that can be registered, where each is kept, and what one must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, is_dataclass
from importlib import import_module
from inspect import getattr_static, isfunction, signature
from typing import Any, NamedTuple


class Registry(NamedTuple):
    """Where the package keeps one kind of thing by name, and what such a thing is."""

    module: str
    dict_name: str
    base: str = ""  # a name in the same module: the class to derive from, or to make one of

    def entries(self) -> dict[str, Any]:
        """Return the dict itself; this imports what is in it."""
        found: dict[str, Any] = getattr(import_module(self.module), self.dict_name)
        return found

    def base_class(self) -> Any:
        """Return the class to derive from; None where there is none."""
        return getattr(import_module(self.module), self.base) if self.base else None


# By kind, as `register` and `fedrfq new` take it. Modules are imported when a kind is asked for:
# a server that registers a detector never loads PyTorch.
REGISTRIES: Mapping[str, Registry] = {
    "method": Registry("fedrfq.methods", "METHODS", "Method"),
    "attack": Registry("fedrfq.robust.attacks", "ATTACKS", "Attack"),
    "detector": Registry("fedrfq.robust.detectors", "DETECTORS", "Detector"),
    "rule": Registry("fedrfq.robust.rules", "RULES", "Rule"),
    "model": Registry("fedrfq.models", "MODELS", "Model"),
    "public-map": Registry("fedrfq.models.public_maps", "PUBLIC_MAPS", "PublicMap"),
    "dataset": Registry("fedrfq.data", "DATASETS", "Source"),
    "partition": Registry("fedrfq.data.partition", "PARTITIONS"),
    "pooling": Registry("fedrfq.prototypes.pooling", "POOLS"),
    "adversary": Registry("fedrfq.simulator.adversaries", "BEHAVIOURS", "Behaviour"),
    "tracker": Registry("fedrfq.runs.trackers", "TRACKERS", "Tracker"),
}


def misfit(kind: str, name: str, value: Any) -> str:
    """Return why something is not of its kind; "" if it is."""
    base = REGISTRIES[kind].base_class()
    if kind == "dataset":
        return _dataset_misfit(base, name, value)
    if not callable(value):
        return f"expected a class or a function, found {value!r:.80}"
    if kind == "partition" and not (is_dataclass(value) and hasattr(value, "deal")):
        return "expected a frozen dataclass with a method deal(dataset, clients, rng)"
    if base and not (isinstance(value, type) and issubclass(value, base)):
        return f"expected a subclass of {base.__module__}.{base.__qualname__}, found {value!r}"
    # A dataclass has taken its fields' options; in another class they would be left as they are.
    if any(isinstance(member, Field) for member in getattr(value, "__dict__", {}).values()):
        return "its options are not read: put @dataclass(frozen=True) below @register"
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        return f"it does not define {', '.join(missing)}"
    return _wrong_call(kind, base, value)


def _wrong_call(kind: str, base: Any, value: Any) -> str:
    """Return which function does not take what it will be called with; "" if all do.

    Such a call fails outside the plugin, where no line of its code would be named.
    """
    if kind == "partition":
        return _refused(value.deal, ["self", "dataset", "clients", "rng"])
    if kind == "pooling":
        return _refused(value, ["c", "pool"])
    for name in dir(base):
        expected = getattr(base, name)
        own = getattr_static(value, name)
        if name.startswith("_") or not isfunction(expected) or not isfunction(own):
            continue
        refused = _refused(own, list(signature(expected).parameters))
        if refused:
            return refused
    return ""


def _refused(function: Callable[..., Any], arguments: list[str]) -> str:
    """Return what is wrong where a function cannot be called with so many arguments."""
    found = signature(function)
    try:
        found.bind(*arguments)
    except TypeError:
        name = getattr(function, "__name__", "it")
        return f"{name}{found} is called as {name}({', '.join(arguments)}): take these"
    return ""


def _dataset_misfit(base: Any, name: str, value: Any) -> str:
    # Not a class: what is known of one dataset.
    if not isinstance(value, base):
        return f"expected a fedrfq.data.Source, found {value!r:.80}"
    if value.name != name:
        return f"its Source is named {value.name!r}: give both the same name"
    return ""
