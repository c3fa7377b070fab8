"""Many runs driven to their ends: those of one program stacked, taken up where an earlier call stopped.

A run is found again by its experiment's hash among the directories under OUT/NAME. One with a result.json is finished and
never computed again; one that was begun goes on from its checkpoint, with those it is stacked with. A run that diverges is
marked by a diverged.json (remove its directory to try it again) and leaves its stack, which goes on without it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.files.strict_json import to_json
from fedrfq.learning.evaluation import RoundOutcome, RoundRecord
from fedrfq.learning.round_loop import Diverged, program_key
from fedrfq.methods import METHODS
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session

MOST_CLIENTS = {"cpu": 200, "cuda": 4000}  # trained at once
_DIVERGED = "diverged.json"


@dataclass(frozen=True)
class EndedRun:
    """A run that needs no more work; `diverged` says why, if it has no result."""

    run: RunDirectory
    diverged: str | None = None

    def records(self) -> list[RoundRecord]:
        """All its rounds."""
        found = self.run.rounds()
        wanted = self.run.experiment().rounds
        if len(found) != wanted or any(
            not isinstance(record.accuracy_mean, float) for record in found
        ):
            raise UserError(
                f"{self.run.path} has no whole records of its {wanted} rounds: remove it to run it again"
            )
        return found


@dataclass(frozen=True)
class Stack:
    """Runs to train together: from their directories, or from the start where there are none."""

    experiments: tuple[Experiment, ...]
    runs: tuple[RunDirectory, ...] = ()


@dataclass(frozen=True)
class GridStep:
    """After a round of a stack: the rounds done of all runs together, what is being trained, and how it stands."""

    completed: int
    what: str
    figures: str


class Grid:
    """Distinct experiments of one name, and where each stands."""

    def __init__(
        self,
        experiments: Iterable[Experiment],
        out: Path,
        device: torch.device,
        most: int,
        keep: bool,
        resume: bool = True,
    ) -> None:
        self.wanted = {experiment.hash(): experiment for experiment in experiments}
        self.out = out
        self.device = device
        self.keep = keep
        self.ended, begun = _found(out, self.wanted)
        self.stacks = plan(self.wanted, self.ended, begun if resume else {}, most)
        self.session: Session | None = None
        self._dataset: tuple[str, Dataset] | None = None

    @property
    def rounds(self) -> int:
        return sum(experiment.rounds for experiment in self.wanted.values())

    def completed(self) -> int:
        ended = sum(self.wanted[key].rounds for key in self.ended)
        return ended + (len(self.session.runs) * self.session.state.round if self.session else 0)

    def advance(self) -> Iterator[GridStep]:
        """A round of a stack at a time, until every run has ended."""
        queue = deque(self.stacks)
        while queue:
            stack = queue.popleft()
            self.session = self._open(stack)
            what = f"{name_of(METHODS, stack.experiments[0].method)}, {len(stack.experiments)} runs"
            try:
                for outcomes in self.session.advance():
                    yield GridStep(self.completed(), what, _figures(outcomes))
            except Diverged as error:
                queue.extendleft(self._without_diverged(self.session, error))
            else:
                self._close(self.session)
            self.session.close()
            self.session = None

    def checkpoint(self) -> None:
        """What is being trained, as far as it is, on disk."""
        if self.session is not None and self.session.state.round:
            self.session.checkpoint()

    def _open(self, stack: Stack) -> Session:
        if stack.runs:
            restack(stack.runs)
            return Session.resume(stack.runs[0].path, self.device)
        return Session.begin(
            stack.experiments, self.device, self.out, self._data(stack.experiments[0].data.name)
        )

    def _data(self, name: str) -> Dataset:
        """The data, which must be those of the runs that are done."""
        if self._dataset is None or self._dataset[0] != name:
            self._dataset = name, data.load(name)
            for key, ended in self.ended.items():
                before = ended.run.environment()["data"].get("sha256")
                if self.wanted[key].data.name == name and before != self._dataset[1].sha256:
                    raise UserError(
                        f"{ended.run.path} was run on other data of that name ({name}): choose another --out"
                    )
        return self._dataset[1]

    def _close(self, session: Session) -> None:
        session.finish()
        for experiment, run in zip(session.loop.experiments, session.runs, strict=True):
            self.ended[experiment.hash()] = EndedRun(run)
            if not self.keep:
                run.prune(-1)

    def _without_diverged(self, session: Session, error: Diverged) -> list[Stack]:
        """What there is to go on with: the stack less the runs that diverged, which are marked."""
        experiments = session.loop.experiments
        number = session.state.round + 1
        for r, why in error.runs.items():
            session.runs[r].write(
                _DIVERGED, to_json({"round": number, "error": why}, indent=2) + "\n"
            )
            self.ended[experiments[r].hash()] = EndedRun(session.runs[r], why)
        left = [r for r in range(len(experiments)) if r not in error.runs]
        if left:
            return [
                Stack(tuple(experiments[r] for r in left), tuple(session.runs[r] for r in left))
            ]
        return []


def _found(
    out: Path, wanted: dict[str, Experiment]
) -> tuple[dict[str, EndedRun], dict[str, RunDirectory]]:
    """The runs there already are: those that ended, and those that were begun."""
    ended: dict[str, EndedRun] = {}
    begun: dict[str, RunDirectory] = {}
    for name in {experiment.name for experiment in wanted.values()}:
        for file in sorted((out / name).glob("*/experiment.toml")):
            run = RunDirectory(file.parent)
            key = _key(RunDirectory(file.parent))
            if key not in wanted:
                continue
            if run.result() is not None:
                ended[key] = EndedRun(run)
            elif (run.path / _DIVERGED).is_file():
                ended.setdefault(key, EndedRun(run, _why(run)))
            elif (run.path / "environment.json").is_file():
                begun[key] = max(
                    begun.get(key, run), run, key=lambda other: max(other.checkpoints(), default=0)
                )
    return ended, begun


def _key(run: RunDirectory) -> str:
    """The experiment's hash; of what cannot be read (another version's, say), nothing that is wanted."""
    try:
        return run.experiment().hash()
    except UserError:
        return ""


def _why(run: RunDirectory) -> str:
    try:
        return str(json.loads((run.path / _DIVERGED).read_text(encoding="utf-8"))["error"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{run.path / _DIVERGED} cannot be read ({error}): remove {run.path} to try the run again"
        ) from error


def plan(
    wanted: dict[str, Experiment],
    ended: dict[str, EndedRun],
    begun: dict[str, RunDirectory],
    most: int,
) -> tuple[Stack, ...]:
    """The work left as stacks of at most so many clients. Who is stacked with whom does not depend on what has ended."""
    stacks = []
    for chunk in _chunks(wanted, most):
        left = [key for key in chunk if key not in ended]
        groups = linked([begun[key] for key in left if key in begun])
        taken = {run.path for group in groups for run in group}
        fresh = [key for key in left if key not in begun or begun[key].path not in taken]
        stacks += [
            Stack(tuple(run.experiment() for run in group), tuple(group)) for group in groups
        ]
        if fresh:
            stacks.append(Stack(tuple(wanted[key] for key in fresh)))
    return tuple(stacks)


def _chunks(wanted: dict[str, Experiment], most: int) -> list[list[str]]:
    by_program: dict[Hashable, list[str]] = defaultdict(list)
    for key, experiment in wanted.items():
        by_program[program_key(experiment)].append(key)
    chunks = []
    for keys in by_program.values():
        pieces = -(-len(keys) // max(1, most // wanted[keys[0]].clients))
        size = -(-len(keys) // pieces)
        chunks += [keys[start : start + size] for start in range(0, len(keys), size)]
    return chunks


def linked(runs: Sequence[RunDirectory]) -> list[list[RunDirectory]]:
    """The runs by what they were stacked with, by any one's word; those of which nobody has a word never began."""
    groups: list[set[Path]] = []
    for run in runs:
        others = {run.path.resolve(), *_stacked_with(run)}
        for group in [group for group in groups if group & others]:
            groups.remove(group)
            others |= group
        groups.append(others)
    together = [[run for run in runs if run.path.resolve() in group] for group in groups]
    return [group for group in together if any(_stacked_with(run) for run in group)]


def _stacked_with(run: RunDirectory) -> set[Path]:
    if "stack" in run.environment():
        return {path.resolve() for path in run.stack()}
    return set()


def restack(runs: Sequence[RunDirectory]) -> None:
    """Make these runs one stack, to be resumed together, whatever they were stacked with."""
    for run in runs:
        if _stacked_with(run) != {other.path.resolve() for other in runs}:
            stack = [os.path.relpath(other.path, run.path) for other in runs]
            run.write(
                "environment.json", to_json({**run.environment(), "stack": stack}, indent=2) + "\n"
            )


def _figures(outcomes: Sequence[RoundOutcome]) -> str:
    return f"accuracy {sum(outcome.record.accuracy_mean for outcome in outcomes) / len(outcomes):.2f} %"
