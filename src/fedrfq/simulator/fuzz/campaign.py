"""Campaigns: many schedules on several processes, up to the first that breaks an invariant.

A campaign can be stopped and continued. Each schedule's seed follows from (seed, servers, index)
alone, and the results are added up in order, so what a campaign finds depends neither on the number
of processes nor on where it was stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import fedrfq
from fedrfq.errors import UserError
from fedrfq.files.atomic import replacing
from fedrfq.simulator.fuzz.trial import Settings, fitting_seed, report
from fedrfq.simulator.fuzz.workers import in_order

# A campaign writes its record after every chunk, so this also bounds how often it writes.
_MAX_CHUNKS = 2_000
# Schedules in a chunk: no more than a few seconds' work.
_MIN_CHUNK = 25
_MAX_CHUNK = 500
# The first chunks are smaller, a share of what was run before: a breach often comes early, and what
# other processes have begun by then was in vain.
_SHARE_OF_RUN = 8
# The packages whose code decides what a schedule does.
_SOURCES = ("consensus", "simulator")


@dataclass(frozen=True)
class Breach:
    """An invariant that broke, and the schedule in which it did."""

    index: int
    schedule_seed: int
    invariant: str
    detail: str


@dataclass(frozen=True)
class Tally:
    """The sum of several schedules, up to and including the first that broke an invariant."""

    schedules: int = 0
    events: int = 0
    exercised: Counter[str] = field(default_factory=Counter)
    breach: Breach | None = None

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.schedules + other.schedules,
            self.events + other.events,
            self.exercised + other.exercised,
            self.breach or other.breach,
        )

    def summary(self) -> dict[str, Any]:
        """Return the tally as JSON; equal tallies give equal text."""
        return {
            "schedules": self.schedules,
            "events": self.events,
            "breach": asdict(self.breach) if self.breach else None,
            "exercised": dict(sorted(self.exercised.items())),
        }

    @staticmethod
    def of(summary: dict[str, Any]) -> Tally:
        """Return the tally of a summary."""
        breach = summary["breach"]
        if breach is not None:
            breach = Breach(**breach)
        return Tally(summary["schedules"], summary["events"], Counter(summary["exercised"]), breach)


Trial = Callable[[Settings, int], Tally]


def try_one(settings: Settings, index: int) -> Tally:
    """Run the schedule of this index to its end."""
    seed = fitting_seed(settings, index)
    outcome = report(settings, seed)
    breach = None
    if outcome.violation:
        breach = Breach(index, seed, outcome.violation.name, outcome.violation.detail)
    return Tally(1, outcome.events, outcome.exercised, breach)


def try_all(settings: Settings, trial: Trial, indices: range) -> Tally:
    """Run these schedules, up to the first that breaks an invariant."""
    tally = Tally()
    for index in indices:
        tally += trial(settings, index)
        if tally.breach:
            break
    return tally


class Campaign:
    """The progress of a campaign.

    With a path, it is saved there after every chunk, and a new campaign with this path continues
    from it. `trial` runs one schedule.
    """

    def __init__(
        self, settings: Settings, path: Path | None = None, trial: Trial = try_one
    ) -> None:
        self.settings = settings
        self.path = path
        self.trial = trial
        self.tally = Tally()
        self.seconds = 0.0
        if path is not None and path.exists():
            self._load(path)

    def done(self) -> bool:
        """Return whether an invariant broke, or all schedules are run."""
        return self.tally.breach is not None or self.tally.schedules == self.settings.schedules

    def advance(self, pool: Executor, jobs: int) -> Iterator[Tally]:
        """Run the remaining schedules, and yield the tally so far after every chunk."""
        if self.done():
            return
        seconds_before = self.seconds
        start = time.monotonic()
        work = partial(try_all, self.settings, self.trial)
        # Chunks are added in their order, whichever worker is done first: the first breach counts.
        for tally in in_order(pool, jobs, work, self._chunks()):
            self.tally += tally
            self.seconds = seconds_before + time.monotonic() - start
            self._save()
            yield self.tally
            if self.tally.breach:
                return

    def record(self) -> dict[str, Any]:
        """Return settings and findings as JSON; only the timing differs between equal campaigns."""
        return {
            "settings": recorded_settings(self.settings),
            "summary": self.tally.summary(),
            "timing": {"seconds": round(self.seconds, 1)},
        }

    def _chunks(self) -> Iterator[range]:
        total = self.settings.schedules
        size = min(_MAX_CHUNK, max(_MIN_CHUNK, total // _MAX_CHUNKS))
        start = self.tally.schedules
        while start < total:
            end = min(start + size, start + 1 + start // _SHARE_OF_RUN, total)
            yield range(start, end)
            start = end

    def _save(self) -> None:
        if self.path is not None:
            save(self.path, self.record())

    def _load(self, path: Path) -> None:
        record = load(path)
        try:
            settings = record["settings"]
            tally = Tally.of(record["summary"])
            self.seconds = float(record["timing"]["seconds"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{path} is not the record of a campaign; choose another --out or remove it"
            ) from None
        check_settings(path, settings, self.settings)
        self.tally = tally


def recorded_settings(settings: Settings) -> dict[str, Any]:
    """Return settings as recorded: with a hash of the code, which decides the outcome too."""
    return {**asdict(settings), "code": code_hash()}


def check_settings(path: Path, recorded: dict[str, Any], settings: Settings) -> None:
    """Raise a `UserError` that names what differs, if a record was made with other settings."""
    wanted = recorded_settings(settings)
    differences = [
        f"{key} {recorded.get(key)}, not {value}"
        for key, value in wanted.items()
        if recorded.get(key) != value
    ]
    if differences:
        raise UserError(
            f"{path} holds a campaign with other settings ({', '.join(differences)}); "
            "choose another --out or remove it"
        )


@cache
def code_hash() -> str:
    """Return a hash of the program under test: results of two versions are never added up."""
    root = Path(fedrfq.__file__).parent
    total = hashlib.sha256()
    for path in sorted(path for package in _SOURCES for path in (root / package).rglob("*.py")):
        file_hash = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root)} {file_hash}\n".encode())
    return total.hexdigest()[:16]


def save(path: Path, record: dict[str, Any]) -> None:
    """Write a record in place of the last one, so that a crash leaves one of them whole."""
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UserError(
            f"cannot write to {path}: {error.strerror or error}; free space or choose another --out"
        ) from error


def load(path: Path) -> dict[str, Any]:
    """Read a record; JSON that is not an object is returned as an empty one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); choose another --out or remove it"
        ) from error
    if not isinstance(record, dict):
        return {}
    return record
