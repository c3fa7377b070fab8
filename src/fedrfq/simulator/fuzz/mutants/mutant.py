"""A mutant: a tiny subclass of a true party with one flaw, and the invariants that may catch it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedrfq.consensus.client import Client
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures
from fedrfq.simulator.fuzz.schedule import Schedule
from fedrfq.simulator.fuzz.schedule_conditions import Condition


@dataclass(frozen=True)
class Mutant:
    """The classes that the honest parties use, one of which is broken."""

    about: str  # what is broken, on one line
    expected: tuple[str, ...]  # the invariants of which one must break
    replica: type[Replica] = Replica
    rules: type[Rules] = Rules
    client: type[Client] = Client
    scheme: type[IdealSignatures] | None = None  # None: the campaign's
    servers: int | None = None  # the size of committee in which alone the flaw shows
    hunt: tuple[Condition, ...] = ()  # all are met by the schedules that it is hunted with

    def is_hunted_with(self, schedule: Schedule) -> bool:
        """Return whether a schedule fits: whether it has what can expose the flaw."""
        return all(condition(schedule) for condition in self.hunt)


TRUE = Mutant("nothing", ())
MUTANTS: dict[str, Mutant] = {}
Party = TypeVar("Party", bound=type[Replica] | type[Rules] | type[Client] | type[IdealSignatures])


def breaks(
    *expected: str,
    servers: int | None = None,
    rules: type[Rules] = Rules,
    hunt: tuple[Condition, ...] = (),
) -> Callable[[Party], Party]:
    """Register a class as a mutant that breaks one of the expected invariants.

    The mutant's name is made from the class name, and its docstring says what is broken. `rules`
    go with a broken replica whose flaw other replicas would otherwise refuse. A mutant that few
    schedules expose says in `hunt` what these have in common.
    """

    def register(party: Party) -> Party:
        # CamelCase becomes camel-case.
        name = re.sub(r"(?<=.)([A-Z])", r"-\1", party.__name__).lower()
        about = " ".join((party.__doc__ or "").split()).rstrip(".")
        MUTANTS[name] = Mutant(
            about,
            expected,
            replica=party if issubclass(party, Replica) else Replica,
            rules=party if issubclass(party, Rules) else rules,
            client=party if issubclass(party, Client) else Client,
            scheme=party if issubclass(party, IdealSignatures) else None,
            servers=servers,
            hunt=hunt,
        )
        return party

    return register
