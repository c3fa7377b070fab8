"""One schedule of a campaign, any time and anywhere again: with the true parties, or with a mutant's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from fedrfq.consensus.roster import Signer
from fedrfq.federation.signatures import Ed25519, simulated
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures
from fedrfq.simulator.fuzz.mutants import MUTANTS, TRUE
from fedrfq.simulator.fuzz.schedule_run import PartyKeys, ScheduleReport, draw, run


@dataclass(frozen=True)
class Settings:
    """What decides a campaign's outcome."""

    servers: int
    schedules: int
    seed: int
    mutant: str | None = None
    signatures: str = "ideal"
    wire: bool = False

    def schedule_seed(self, index: int) -> int:
        """63 bits of its own for every schedule of every campaign."""
        text = f"{self.seed} {self.servers} {index}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


class _Real(Ed25519):
    """Ed25519 with keys for everyone."""

    def __init__(self) -> None:
        super().__init__()
        self.signers: dict[bytes, Signer] = {}

    def key(self, party: int) -> bytes:
        signer = simulated(0, "server" if party >= 0 else "client", max(party, ~party))
        self.signers[signer.public] = signer
        return signer.public

    def signer(self, key: bytes) -> Signer:
        return self.signers[key]


SIGNATURES: dict[str, Callable[[], PartyKeys]] = {"ideal": IdealSignatures, "ed25519": _Real}


def report(settings: Settings, schedule_seed: int, trace: bool = False) -> ScheduleReport:
    if settings.mutant:
        mutant = MUTANTS[settings.mutant]
    else:
        mutant = TRUE
    return run(
        draw(schedule_seed, settings.servers),
        replica=mutant.replica,
        rules=mutant.rules,
        client=mutant.client,
        scheme=(mutant.scheme or SIGNATURES[settings.signatures])(),
        wire=settings.wire,
        trace=trace,
    )


def transcript(settings: Settings, schedule_seed: int) -> tuple[str, bool]:
    """All that happens in a schedule, for people to read; and whether an invariant broke."""
    found = report(settings, schedule_seed, trace=True)
    if found.violation:
        end = f"broken: {found.violation}"
    else:
        end = "every invariant held"
    return (
        f"{draw(schedule_seed, settings.servers)}\n\n{found.transcript}\n{end}\n",
        found.violation is not None,
    )
