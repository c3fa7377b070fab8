"""The mutant hunt: run schedules against each mutant until an invariant catches it.

What no mutant's flaw can break is not tested. The true replica must pass the very schedule in
which a mutant was caught.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.simulator.fuzz.campaign import (
    Campaign,
    check_settings,
    load,
    recorded_settings,
    save,
    try_one,
)
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.trial import Settings


@dataclass(frozen=True)
class MutantVerdict:
    """The invariant that caught a mutant, if any, and how many schedules it survived before."""

    mutant: str
    servers: int
    survived: int
    invariant: str | None
    schedule_seed: int | None
    true_breaks: str | None  # the invariant that the true replica breaks there; None as it should

    def caught(self) -> bool:
        """Return whether an expected invariant caught it where the true replica breaks none."""
        return self.invariant in MUTANTS[self.mutant].expected and self.true_breaks is None


class Hunt:
    """The verdicts on all mutants so far.

    With a path, they are saved there after every mutant, and a new hunt with this path continues
    from them.
    """

    def __init__(self, settings: Settings, path: Path | None = None) -> None:
        self.settings = settings
        self.path = path
        self.verdicts: dict[str, MutantVerdict] = {}
        if path is not None and path.exists():
            self._load(path)

    def advance(self, pool: Executor, jobs: int) -> Iterator[tuple[str, int]]:
        """Hunt the remaining mutants; yield each name with the schedules survived so far."""
        for name, mutant in MUTANTS.items():
            if name in self.verdicts:
                continue
            servers = mutant.servers or self.settings.servers
            campaign = Campaign(replace(self.settings, mutant=name, servers=servers))
            yield name, 0
            for tally in campaign.advance(pool, jobs):
                yield name, tally.schedules
            self.verdicts[name] = judge(campaign)
            if self.path is not None:
                save(self.path, self.record())

    def record(self) -> dict[str, Any]:
        """Return settings and verdicts as JSON."""
        return {
            "settings": recorded_settings(self.settings),
            "mutants": [asdict(verdict) for verdict in self.verdicts.values()],
        }

    def _load(self, path: Path) -> None:
        record = load(path)
        try:
            settings = record["settings"]
            verdicts = [MutantVerdict(**fields) for fields in record["mutants"]]
        except (KeyError, TypeError):
            raise UserError(
                f"{path} is not the record of a mutant hunt; choose another --out or remove it"
            ) from None
        check_settings(path, settings, self.settings)
        self.verdicts = {verdict.mutant: verdict for verdict in verdicts}


def judge(campaign: Campaign) -> MutantVerdict:
    """Return the verdict on the mutant of a finished campaign."""
    settings = campaign.settings
    tally = campaign.tally
    assert settings.mutant is not None
    if tally.breach is None:
        return MutantVerdict(settings.mutant, settings.servers, tally.schedules, None, None, None)
    true_breach = try_one(replace(settings, mutant=None), tally.breach.index).breach
    return MutantVerdict(
        mutant=settings.mutant,
        servers=settings.servers,
        survived=tally.breach.index,
        invariant=tally.breach.invariant,
        schedule_seed=tally.breach.schedule_seed,
        true_breaks=true_breach.invariant if true_breach else None,
    )
