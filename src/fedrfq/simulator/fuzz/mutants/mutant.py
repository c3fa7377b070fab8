"""A deliberately broken party: a tiny subclass of a true one, and the invariants that may find it out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedrfq.consensus.client import Client
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures


@dataclass(frozen=True)
class Mutant:
    about: str  # what is broken, on one line
    expected: tuple[str, ...]  # the invariants of which one must break
    replica: type[Replica] = Replica
    rules: type[Rules] = Rules
    client: type[Client] = Client
    scheme: type[IdealSignatures] | None = None  # in place of the campaign's
    servers: int | None = None  # where it shows only in committees of this size


TRUE = Mutant("nothing", ())
MUTANTS: dict[str, Mutant] = {}
Party = TypeVar("Party", bound=type[Replica] | type[Rules] | type[Client] | type[IdealSignatures])


def breaks(
    *expected: str, servers: int | None = None, rules: type[Rules] = Rules
) -> Callable[[Party], Party]:
    """Enter a class among the mutants, by its name; its docstring says what is broken."""

    def enter(party: Party) -> Party:
        name = re.sub(r"(?<=.)([A-Z])", r"-\1", party.__name__).lower()
        about = " ".join((party.__doc__ or "").split()).rstrip(".")
        MUTANTS[name] = Mutant(
            about,
            expected,
            party if issubclass(party, Replica) else Replica,
            party if issubclass(party, Rules) else rules,
            party if issubclass(party, Client) else Client,
            party if issubclass(party, IdealSignatures) else None,
            servers,
        )
        return party

    return enter
