"""The interface of an aggregation rule: from a round's uploads to the centres of the classes.

Like a detector, a rule is a pure function of integers. It sees the centres that were certified in
the round before and what it remembers itself, so that it can bound what a round may change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.centres import CENTRES
from fedrfq.robust.state import State


@dataclass(frozen=True)
class Rule(ABC):
    """An aggregation rule by its settings."""

    # Whether any two servers that saw the same uploads combine them to the same bytes. Each class
    # says so for itself, and it is not inherited: only then may more than one server use it.
    exact: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.exact = cls.__dict__.get("exact", False) is True

    def start(self, classes: int, values: int) -> State:
        """Return the state before the first round, for so many classes of so many values."""
        return {}

    @abstractmethod
    def combine(
        self, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
    ) -> tuple[State, Ints]:
        """Return the state for the next round, and the centre of each class, J × V.

        `last` are the global prototypes of the round before. An upload of a class counts with a
        weight of 0 to FULL. What is returned for a class in which no upload has any weight is
        ignored: it keeps its last prototype. Centres are rounded to the grid afterwards.
        """


@dataclass(frozen=True)
class Forgetful(Rule):
    """A rule that looks at the round's uploads alone."""

    exact: ClassVar[bool] = True
    centre: str  # one of CENTRES

    def combine(
        self, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
    ) -> tuple[State, Ints]:
        return state, CENTRES[self.centre](uploads, weight_KJ)
