"""Many schedules of one kind, to the first that breaks an invariant: spread over processes, stopped and taken up at will.

The seeds follow from (seed, servers, index) alone, and chunks of them are counted in order, so what a campaign finds does
not depend on the number of processes or on where it was stopped.
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
from fedrfq.simulator.fuzz.trial import Settings, report
from fedrfq.simulator.fuzz.workers import in_order

_MOST_CHUNKS = 2_000  # a campaign writes what it has found that often
# schedules of a chunk: no more than a few seconds' work
_SMALLEST = 25
_LARGEST = 500
_SOURCES = ("consensus", "simulator")


@dataclass(frozen=True)
class Breach:
    """An invariant that did not hold, and the schedule that shows it."""

    index: int
    schedule_seed: int
    invariant: str
    detail: str


@dataclass(frozen=True)
class Tally:
    """What a number of schedules came to, up to and including the first that broke an invariant."""

    schedules: int = 0
    events: int = 0
    exercised: Counter[str] = field(default_factory=Counter)
    breach: Breach | None = None

    def __add__(self, other: Tally) -> Tally:
        exercised = self.exercised + other.exercised
        return Tally(
            self.schedules + other.schedules,
            self.events + other.events,
            exercised,
            self.breach or other.breach,
        )

    def summary(self) -> dict[str, Any]:
        """As JSON, the same for the same tally."""
        if self.breach:
            breach = asdict(self.breach)
        else:
            breach = None
        counts = {"schedules": self.schedules, "events": self.events, "breach": breach}
        return {**counts, "exercised": dict(sorted(self.exercised.items()))}

    @staticmethod
    def of(summary: dict[str, Any]) -> Tally:
        if summary["breach"]:
            breach = Breach(**summary["breach"])
        else:
            breach = None
        return Tally(summary["schedules"], summary["events"], Counter(summary["exercised"]), breach)


Trial = Callable[[Settings, int], Tally]


def try_one(settings: Settings, index: int) -> Tally:
    """The schedule of this index, run to its end."""
    seed = settings.schedule_seed(index)
    found = report(settings, seed)
    if found.violation:
        breach = Breach(index, seed, found.violation.name, found.violation.detail)
    else:
        breach = None
    return Tally(1, found.events, found.exercised, breach)


def try_all(settings: Settings, trial: Trial, indices: range) -> Tally:
    """These schedules, to the first that breaks an invariant."""
    tally = Tally()
    for index in indices:
        tally += trial(settings, index)
        if tally.breach:
            break
    return tally


class Campaign:
    """Where a campaign stands; with a path, also on disk after every chunk, from where the next call goes on."""

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
        return self.tally.breach is not None or self.tally.schedules == self.settings.schedules

    def advance(self, pool: Executor, jobs: int) -> Iterator[Tally]:
        """The tally after every chunk, until an invariant breaks or all schedules are run."""
        if self.done():
            return
        before = self.seconds
        start = time.monotonic()
        work = partial(try_all, self.settings, self.trial)
        for found in in_order(pool, jobs, work, self._chunks()):
            self.tally += found
            self.seconds = before + time.monotonic() - start
            self._save()
            yield self.tally
            if self.tally.breach:
                return

    def record(self) -> dict[str, Any]:
        """Settings and findings; how long it took stands apart, for it alone differs from call to call."""
        settings = {**asdict(self.settings), "code": code()}
        return {
            "settings": settings,
            "summary": self.tally.summary(),
            "timing": {"seconds": round(self.seconds, 1)},
        }

    def _chunks(self) -> Iterator[range]:
        total = self.settings.schedules
        size = min(_LARGEST, max(_SMALLEST, total // _MOST_CHUNKS))
        for start in range(self.tally.schedules, total, size):
            yield range(start, min(start + size, total))

    def _save(self) -> None:
        if self.path is not None:
            save(self.path, self.record())

    def _load(self, path: Path) -> None:
        found = load(path)
        try:
            settings = found["settings"]
            tally = Tally.of(found["summary"])
            self.seconds = float(found["timing"]["seconds"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{path} is no campaign's record: choose another --out, or remove it"
            ) from None
        same_settings(path, settings, self.record()["settings"])
        self.tally = tally


def same_settings(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """An error that names what differs."""
    other = [key for key in wanted if found.get(key) != wanted[key]]
    if other:
        differs = ", ".join(f"{key} {found.get(key)}, not {wanted[key]}" for key in other)
        raise UserError(
            f"{path} holds a campaign with other settings ({differs}): choose another --out, or remove it"
        )


@cache
def code() -> str:
    """A hash of the program under test: findings of two versions are never added up."""
    root = Path(fedrfq.__file__).parent
    total = hashlib.sha256()
    for path in sorted(path for part in _SOURCES for path in (root / part).rglob("*.py")):
        total.update(
            f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return total.hexdigest()[:16]


def save(path: Path, record: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write((json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError(
            f"cannot write to {path}: {error.strerror or error}; free space or choose another --out"
        ) from error


def load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): choose another --out, or remove it"
        ) from error
    if isinstance(found, dict):
        return found
    return {}
