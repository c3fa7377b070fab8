"""Every mutant against the schedules, one after the other, until an invariant finds it out: what is not found out is not
tested. The true replica must pass the very schedule a mutant died of."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.simulator.fuzz.campaign import Campaign, code, load, same_settings, save, try_one
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.trial import Settings


@dataclass(frozen=True)
class MutantVerdict:
    """What became of a mutant: the invariant that found it out, if any, and the schedules it survived before."""

    mutant: str
    servers: int
    survived: int
    invariant: str | None
    schedule_seed: int | None
    true_breaks: (
        str | None
    )  # the invariant that the true replica breaks on that schedule: there is none

    def caught(self) -> bool:
        """By an invariant that is meant to, where the true replica breaks none."""
        return self.invariant in MUTANTS[self.mutant].expected and self.true_breaks is None


class Hunt:
    """The verdicts so far; with a path, also on disk after every mutant, from where the next call goes on."""

    def __init__(self, settings: Settings, path: Path | None = None) -> None:
        self.settings = settings
        self.path = path
        self.verdicts: dict[str, MutantVerdict] = {}
        if path is not None and path.exists():
            self._load(path)

    def advance(self, pool: Executor, jobs: int) -> Iterator[tuple[str, int]]:
        """The mutant at work and the schedules it has survived, again and again until all have met their fate."""
        for name, mutant in MUTANTS.items():
            if name not in self.verdicts:
                settings = replace(
                    self.settings, mutant=name, servers=mutant.servers or self.settings.servers
                )
                campaign = Campaign(settings)
                yield name, 0
                for tally in campaign.advance(pool, jobs):
                    yield name, tally.schedules
                self.verdicts[name] = verdict(campaign)
                if self.path is not None:
                    save(self.path, self.record())

    def record(self) -> dict[str, Any]:
        settings = {**asdict(self.settings), "code": code()}
        return {
            "settings": settings,
            "mutants": [asdict(verdict) for verdict in self.verdicts.values()],
        }

    def _load(self, path: Path) -> None:
        found = load(path)
        try:
            settings = found["settings"]
            verdicts = [MutantVerdict(**each) for each in found["mutants"]]
        except (KeyError, TypeError):
            raise UserError(
                f"{path} is no record of mutants: choose another --out, or remove it"
            ) from None
        same_settings(path, settings, self.record()["settings"])
        self.verdicts = {verdict.mutant: verdict for verdict in verdicts}


def verdict(campaign: Campaign) -> MutantVerdict:
    settings = campaign.settings
    tally = campaign.tally
    assert settings.mutant is not None
    if tally.breach is None:
        return MutantVerdict(settings.mutant, settings.servers, tally.schedules, None, None, None)
    true = try_one(replace(settings, mutant=None), tally.breach.index).breach
    seed = tally.breach.schedule_seed
    if true:
        broken = true.invariant
    else:
        broken = None
    return MutantVerdict(
        settings.mutant, settings.servers, tally.breach.index, tally.breach.invariant, seed, broken
    )
