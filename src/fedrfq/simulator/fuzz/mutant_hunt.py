"""The mutant hunt: run schedules against each mutant until an invariant catches it.

What no mutant's flaw can break is not tested. A mutant that few schedules expose is hunted with
those that fit it (`Mutant.hunt`). It is hunted until it breaks an invariant that its flaw is
expected to break; others that it breaks before do not end the hunt. The true replica must pass the
very schedule in which a mutant was caught.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.simulator.fuzz.campaign import (
    Campaign,
    Tally,
    check_settings,
    load,
    recorded_settings,
    save,
    try_one,
)
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.trial import Settings, report

# What is counted of schedules in which another invariant broke than those that were expected.
_UNEXPECTED = "broke an invariant that was not expected"


@dataclass(frozen=True)
class MutantVerdict:
    """The invariant that caught a mutant, if any, and how many schedules it took."""

    mutant: str
    servers: int
    schedules: int  # that were run, with the one that caught it
    unexpected: int = 0  # how many of them broke only an invariant that was not expected
    invariant: str | None = None
    schedule_seed: int | None = None
    true_breaks: str | None = None  # the invariant that the true replica breaks there

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
        self.seconds = 0.0
        if path is not None and path.exists():
            self._load(path)

    def advance(self, pool: Executor, jobs: int) -> Iterator[tuple[str, int]]:
        """Hunt the remaining mutants; yield each name with the schedules run so far."""
        seconds_before = self.seconds
        start = time.monotonic()
        for name, mutant in MUTANTS.items():
            if name in self.verdicts:
                continue
            servers = mutant.servers or self.settings.servers
            settings = replace(self.settings, mutant=name, servers=servers)
            campaign = Campaign(settings, trial=hunt_one)
            yield name, 0
            for tally in campaign.advance(pool, jobs):
                yield name, tally.schedules
            self.verdicts[name] = judge(campaign)
            self.seconds = seconds_before + time.monotonic() - start
            if self.path is not None:
                save(self.path, self.record())

    def record(self) -> dict[str, Any]:
        """Return settings and verdicts as JSON; only the timing differs between equal hunts."""
        return {
            "settings": recorded_settings(self.settings),
            "mutants": [asdict(verdict) for verdict in self.verdicts.values()],
            "timing": {"seconds": round(self.seconds, 1)},
        }

    def _load(self, path: Path) -> None:
        record = load(path)
        try:
            settings = record["settings"]
            verdicts = [MutantVerdict(**fields) for fields in record["mutants"]]
            seconds = float(record["timing"]["seconds"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{path} is not the record of a mutant hunt; choose another --out or remove it"
            ) from None
        check_settings(path, settings, self.settings)
        self.verdicts = {verdict.mutant: verdict for verdict in verdicts}
        self.seconds = seconds


def hunt_one(settings: Settings, index: int) -> Tally:
    """Run a schedule against a mutant; only a breach that ends the hunt is one of the tally.

    It ends if the invariant is an expected one, or if the true replica breaks one there too.
    """
    tally = try_one(settings, index)
    breach = tally.breach
    if breach is None or breach.invariant in settings.party_classes().expected:
        return tally
    if _true_breaks(settings, breach.schedule_seed) is not None:
        return tally
    return replace(tally, exercised=Counter({_UNEXPECTED: 1}), breach=None)


def judge(campaign: Campaign) -> MutantVerdict:
    """Return the verdict on the mutant of a finished campaign."""
    settings = campaign.settings
    tally = campaign.tally
    assert settings.mutant is not None
    unexpected = tally.exercised[_UNEXPECTED]
    if tally.breach is None:
        return MutantVerdict(settings.mutant, settings.servers, tally.schedules, unexpected)
    return MutantVerdict(
        mutant=settings.mutant,
        servers=settings.servers,
        schedules=tally.schedules,
        unexpected=unexpected,
        invariant=tally.breach.invariant,
        schedule_seed=tally.breach.schedule_seed,
        true_breaks=_true_breaks(settings, tally.breach.schedule_seed),
    )


def _true_breaks(settings: Settings, schedule_seed: int) -> str | None:
    """Return the invariant that the true replica breaks in a schedule; None, as it should."""
    violation = report(replace(settings, mutant=None), schedule_seed).violation
    if violation is None:
        return None
    return violation.name
