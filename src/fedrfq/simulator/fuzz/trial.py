"""Run one schedule of a campaign again, with the true parties or with a mutant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from fedrfq.consensus.roster import Signer
from fedrfq.errors import UserError
from fedrfq.federation.signatures import Ed25519, simulated
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures
from fedrfq.simulator.fuzz.mutants import MUTANTS, TRUE, Mutant
from fedrfq.simulator.fuzz.schedule_run import PartyKeys, ScheduleReport, draw, run

# How many schedules are drawn for one that fits a mutant. About one in fifty does.
_MAX_DRAWS = 20_000


@dataclass(frozen=True)
class Settings:
    """The settings that decide what a campaign finds."""

    servers: int
    schedules: int
    seed: int
    mutant: str | None = None
    signatures: str = "ideal"
    wire: bool = False

    def schedule_seed(self, index: int, redrawn: int = 0) -> int:
        """Return the seed of a schedule: 63 bits that no other schedule of any campaign shares.

        A schedule that does not fit a mutant is drawn again; `redrawn` says how often it was.
        """
        text = f"{self.seed} {self.servers} {index}"
        if redrawn:
            text += f" {redrawn}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1

    def party_classes(self) -> Mutant:
        """Return the classes that the honest parties use."""
        if self.mutant is None:
            return TRUE
        return MUTANTS[self.mutant]


class _Ed25519WithKeys(Ed25519):
    """Ed25519 signatures with a key for every party."""

    def __init__(self) -> None:
        super().__init__()
        self.signers: dict[bytes, Signer] = {}

    def key(self, party: int) -> bytes:
        if party >= 0:
            signer = simulated(0, "server", party)
        else:
            signer = simulated(0, "client", ~party)
        self.signers[signer.public] = signer
        return signer.public

    def signer(self, key: bytes) -> Signer:
        return self.signers[key]


SIGNATURES: dict[str, Callable[[], PartyKeys]] = {
    "ideal": IdealSignatures,
    "ed25519": _Ed25519WithKeys,
}


def report(settings: Settings, schedule_seed: int, trace: bool = False) -> ScheduleReport:
    """Run the schedule of a seed, with `trace` for a transcript."""
    mutant = settings.party_classes()
    make_scheme = mutant.scheme or SIGNATURES[settings.signatures]
    return run(
        draw(schedule_seed, settings.servers),
        replica=mutant.replica,
        rules=mutant.rules,
        client=mutant.client,
        scheme=make_scheme(),
        wire=settings.wire,
        trace=trace,
    )


def fitting_seed(settings: Settings, index: int) -> int:
    """Return the seed of a campaign's schedule: the first that is drawn and fits the mutant."""
    mutant = settings.party_classes()
    for redrawn in range(_MAX_DRAWS):
        seed = settings.schedule_seed(index, redrawn)
        # Where every schedule fits, none needs to be drawn.
        if not mutant.hunt or mutant.is_hunted_with(draw(seed, settings.servers)):
            return seed
    raise UserError(
        f"none of {_MAX_DRAWS:,} schedules with {settings.servers} servers meets the conditions "
        f"that the mutant {settings.mutant} is hunted with; choose another number of --servers"
    )


def transcript(settings: Settings, schedule_seed: int) -> tuple[str, bool]:
    """Return all that happens in a schedule as text, and whether an invariant broke."""
    outcome = report(settings, schedule_seed, trace=True)
    schedule = draw(schedule_seed, settings.servers)
    end = "every invariant held"
    if outcome.violation:
        end = f"broken: {outcome.violation}"
    text = f"{schedule}\n\n{outcome.transcript}\n{end}\n"
    return text, outcome.violation is not None
