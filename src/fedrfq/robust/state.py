"""What detectors, aggregation rules and attackers remember: named arrays of integers."""

from __future__ import annotations

from collections.abc import Mapping

from fedrfq.prototypes.fixed_point import Ints

State = Mapping[str, Ints]
# What is remembered together has names of its own: the rule's, and the clients' latest statistics.
# All other names are the detector's.
RULE = "rule"
RETAINED = "retained"


def inner_state(state: State, key: str) -> State:
    """Return the arrays under `key`, by their own names."""
    prefix = f"{key}/"
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }


def outer_state(inner: State, key: str) -> State:
    """Return arrays under `key`, as they are remembered together with others."""
    return {f"{key}/{name}": array for name, array in inner.items()}
