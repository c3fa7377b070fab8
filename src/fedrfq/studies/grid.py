"""A grid of runs, driven to the end: runs of one program are stacked, and stopped ones resumed.

A run is found again by its experiment's hash among the directories under OUT/NAME. One with a
result.json is finished and never computed again, nor is one of an equal experiment; one that was
begun resumes from its checkpoint, together with the runs it is stacked with. A run that diverges is
marked by a diverged.json (remove its directory to try it again) and leaves its stack, which goes on
without it.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Data, Experiment, name_of
from fedrfq.files import regular
from fedrfq.files.atomic import reporting_write_errors
from fedrfq.files.locks import exclusive
from fedrfq.files.strict_json import from_json, to_json
from fedrfq.learning.evaluation import RoundOutcome, RoundRecord
from fedrfq.learning.round_loop import Diverged, program_key
from fedrfq.methods import METHODS
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session
from fedrfq.studies.equality import rerun_key, run_key

# The default limit on clients trained at once.
MAX_CLIENTS = {"cpu": 200, "cuda": 4000, "mps": 200}
_DIVERGED = "diverged.json"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class EndedRun:
    """A run that needs no more work; `diverged` says why if it has no result.

    `reruns` are other finished runs of the same experiment, under whatever name they were run.
    """

    run: RunDirectory
    diverged: str | None = None
    reruns: tuple[RunDirectory, ...] = ()

    def records(self) -> list[RoundRecord]:
        """Return the records of all rounds, which must be complete."""
        records = self.run.rounds()
        rounds = self.run.experiment().rounds
        if len(records) != rounds or any(
            not isinstance(record.accuracy_mean, float) for record in records
        ):
            raise UserError(
                f"{self.run.path} lacks complete records of its {rounds} rounds; remove it to run "
                "it again"
            )
        return records


@dataclass(frozen=True)
class Stack:
    """Runs to train together: from their directories, or from the start if there are none."""

    experiments: tuple[Experiment, ...]
    runs: tuple[RunDirectory, ...] = ()


@dataclass(frozen=True)
class GridStep:
    """Progress after a round of a stack: rounds completed in all runs, the stack, its accuracy."""

    completed: int
    what: str
    figures: str


class Grid:
    """Distinct experiments of one name, and how far each of them is.

    At most `most` clients are trained at once, by default as many as suit the device. Trained
    models are removed unless `keep`. Without `resume`, runs that were begun but have not ended
    start again. `dataset` is that of all experiments where it was given as an object and cannot be
    loaded by its name.
    """

    def __init__(
        self,
        experiments: Iterable[Experiment],
        out: Path,
        device: torch.device,
        most: int | None,
        keep: bool,
        *,
        resume: bool = True,
        dataset: Dataset | None = None,
    ) -> None:
        self.wanted = {experiment.hash(): experiment for experiment in experiments}
        self.out = out
        self.device = device
        self.keep = keep
        self.ended, begun = _existing_runs(out, self.wanted)
        self._finished = _finished_runs(out, self.wanted.values())
        self.ended = {key: self._with_reruns(end) for key, end in self.ended.items()}
        if not resume:
            begun = {}
        self.stacks = plan(self.wanted, self.ended, begun, most or MAX_CLIENTS[device.type])
        self.session: Session | None = None
        self._given = dataset
        self._dataset: Dataset | None = None  # the last one loaded: stacks in a row share it
        self._loaded = Data()

    @property
    def left(self) -> int:
        """The number of runs that have not ended."""
        return len(self.wanted) - len(self.ended)

    @property
    def rounds(self) -> int:
        """The number of rounds of all runs together."""
        return sum(experiment.rounds for experiment in self.wanted.values())

    def completed(self) -> int:
        """Return how many rounds are completed in all runs together."""
        completed = sum(self.wanted[key].rounds for key in self.ended)
        if self.session:
            completed += len(self.session.runs) * self.session.state.round
        return completed

    def advance(self) -> Iterator[GridStep]:
        """Train one round of a stack at a time until every run has ended."""
        queue = deque(self.stacks)
        while queue:
            stack = queue.popleft()
            self.session = self._open(stack)
            method = name_of(METHODS, stack.experiments[0].method)
            what = f"{method} × {len(stack.experiments)}"
            try:
                for outcomes in self.session.advance():
                    yield GridStep(self.completed(), what, _figures(outcomes))
            except Diverged as error:
                # At the front of the queue: the rest of the stack resumes before another begins.
                queue.extendleft(self._without_diverged(self.session, error))
            else:
                self._close(self.session)
            self.session.close()
            self.session = None

    def checkpoint(self) -> None:
        """Write a checkpoint of the stack that is being trained, if it has completed a round."""
        if self.session is not None and self.session.state.round:
            self.session.checkpoint()

    def _open(self, stack: Stack) -> Session:
        if stack.runs:
            restack(stack.runs)
            return Session.resume(stack.runs[0].path, self.device, self._given)
        dataset = self._load_dataset(stack.experiments[0].data)
        return Session.begin(stack.experiments, self.device, self.out, dataset)

    def _load_dataset(self, wanted: Data) -> Dataset:
        """Return the dataset, which must be the one that the finished runs were trained on."""
        if self._dataset is None or not self._loaded.same_samples(wanted):
            self._dataset = self._given or wanted.load()
            self._loaded = wanted
            self._check_finished_used(self._dataset)
        return self._dataset

    def _check_finished_used(self, dataset: Dataset) -> None:
        for key, ended in self.ended.items():
            if not self.wanted[key].data.same_samples(self._loaded):
                continue
            if ended.run.environment()["data"].get("sha256") != dataset.sha256:
                raise UserError(
                    f"{ended.run.path} was run on other data of the name {self._loaded.name}; "
                    "choose another --out"
                )

    def _close(self, session: Session) -> None:
        session.finish()
        for experiment, run in zip(session.loop.experiments, session.runs, strict=True):
            self.ended[experiment.hash()] = self._with_reruns(EndedRun(run))
            if not self.keep:
                run.prune(-1)

    def _with_reruns(self, ended: EndedRun) -> EndedRun:
        """Name the other runs of the same experiment that had ended when this grid was opened."""
        if ended.diverged is not None:
            return ended
        finished = self._finished[rerun_key(ended.run.experiment())]
        return replace(ended, reruns=tuple(run for run in finished if run.path != ended.run.path))

    def _without_diverged(self, session: Session, error: Diverged) -> list[Stack]:
        """Mark the runs that diverged, and return what is left of their stack."""
        experiments = session.loop.experiments
        failed_round = session.state.round + 1
        for r, why in error.runs.items():
            note = to_json({"round": failed_round, "error": why}, indent=2)
            session.runs[r].write(_DIVERGED, note + "\n")
            self.ended[experiments[r].hash()] = EndedRun(session.runs[r], why)
        left = [r for r in range(len(experiments)) if r not in error.runs]
        if not left:
            return []
        return [Stack(tuple(experiments[r] for r in left), tuple(session.runs[r] for r in left))]


def _existing_runs(
    out: Path, wanted: dict[str, Experiment]
) -> tuple[dict[str, EndedRun], dict[str, RunDirectory]]:
    """Return the wanted runs that have ended and those that were begun, by experiment hash."""
    ended: dict[str, EndedRun] = {}
    begun: dict[str, RunDirectory] = {}
    by_run_key = {run_key(experiment): key for key, experiment in wanted.items()}
    for name in {experiment.name for experiment in wanted.values()}:
        for file in sorted((out / name).glob("*/experiment.toml")):
            run = RunDirectory(file.parent)
            experiment = _readable_experiment(run)
            key = ""
            if experiment is not None:
                key = by_run_key.get(run_key(experiment), "")
            if experiment is None or not key:
                continue
            if run.result() is not None:
                ended[key] = EndedRun(run)
            elif (run.path / _DIVERGED).is_file():
                # setdefault: a result of the same experiment in another directory counts for more.
                ended.setdefault(key, EndedRun(run, _why_diverged(run)))
            # An equal experiment will do once it has ended, but only the same one can be resumed.
            elif key == experiment.hash() and (run.path / "environment.json").is_file():
                # Of several begun with the same experiment, the one that got farthest.
                begun[key] = max(begun.get(key, run), run, key=_last_checkpoint)
    return ended, begun


def _last_checkpoint(run: RunDirectory) -> int:
    return max(run.checkpoints(), default=0)


def _readable_experiment(run: RunDirectory) -> Experiment | None:
    """Return a run's experiment, or None if this version cannot read it."""
    try:
        return run.experiment()
    except UserError:
        return None


def _finished_runs(out: Path, wanted: Iterable[Experiment]) -> defaultdict[str, list[RunDirectory]]:
    """Return all finished runs of the wanted experiments in any folder, by what reruns share."""
    keys = {rerun_key(experiment) for experiment in wanted}
    finished: defaultdict[str, list[RunDirectory]] = defaultdict(list)
    for file in sorted(out.glob("*/*/result.json")):
        run = RunDirectory(file.parent)
        experiment = _readable_experiment(run)
        if experiment is not None and rerun_key(experiment) in keys:
            finished[rerun_key(experiment)].append(run)
    return finished


def _why_diverged(run: RunDirectory) -> str:
    path = run.path / _DIVERGED
    try:
        return str(from_json(regular.read_text(path, _MAX_BYTES))["error"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot read {path} ({error}); remove {run.path} to try the run again"
        ) from error


def plan(
    wanted: dict[str, Experiment],
    ended: dict[str, EndedRun],
    begun: dict[str, RunDirectory],
    most: int,
) -> tuple[Stack, ...]:
    """Divide the work that is left into stacks of at most `most` clients."""
    stacks = []
    # Chunks are made of all wanted runs, whether they have ended or not. So a grid that is stopped
    # and resumed stacks the same runs as one that never stopped, and gets the same figures.
    for chunk in _chunks(wanted, most):
        left = [key for key in chunk if key not in ended]
        groups = linked([begun[key] for key in left if key in begun])
        resumed = {run.path for group in groups for run in group}
        fresh = [key for key in left if key not in begun or begun[key].path not in resumed]
        stacks += [
            Stack(tuple(run.experiment() for run in group), tuple(group)) for group in groups
        ]
        if fresh:
            stacks.append(Stack(tuple(wanted[key] for key in fresh)))
    return tuple(stacks)


def _chunks(wanted: dict[str, Experiment], most: int) -> list[list[str]]:
    """Group the runs by program, and divide each group into pieces of about the same size."""
    by_program: dict[Hashable, list[str]] = defaultdict(list)
    for key, experiment in wanted.items():
        by_program[program_key(experiment)].append(key)
    chunks = []
    for keys in by_program.values():
        # A single run may have more clients than the limit; it is trained alone then.
        runs_at_once = max(1, most // wanted[keys[0]].clients)
        pieces = -(-len(keys) // runs_at_once)
        size = -(-len(keys) // pieces)
        chunks += [keys[start : start + size] for start in range(0, len(keys), size)]
    return chunks


def linked(runs: Sequence[RunDirectory]) -> list[list[RunDirectory]]:
    """Group begun runs by the stacks they were in, leaving out those that never really began.

    It is enough that one run of a stack names the others: a process that is killed while it writes
    the directories leaves some that know of no stack. If none of them does, nothing was trained.
    """
    groups: list[set[Path]] = []
    for run in runs:
        merged = {run.path.resolve(), *_stacked_with(run)}
        for group in [group for group in groups if group & merged]:
            groups.remove(group)
            merged |= group
        groups.append(merged)
    stacks = [[run for run in runs if run.path.resolve() in group] for group in groups]
    return [stack for stack in stacks if any(_stacked_with(run) for run in stack)]


def _stacked_with(run: RunDirectory) -> set[Path]:
    if "stack" in run.environment():
        return {path.resolve() for path in run.stack()}
    return set()


def restack(runs: Sequence[RunDirectory]) -> None:
    """Make these runs one stack, to be resumed together, and forget earlier stacks of theirs."""
    paths = {run.path.resolve() for run in runs}
    for run in runs:
        if _stacked_with(run) != paths:
            stack = [os.path.relpath(other.path, run.path) for other in runs]
            environment = {**run.environment(), "stack": stack}
            run.write("environment.json", to_json(environment, indent=2) + "\n")


def _figures(outcomes: Sequence[RoundOutcome]) -> str:
    accuracy = fmean(outcome.record.accuracy_mean for outcome in outcomes)
    return f"accuracy {accuracy:.2f} %"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process out of the same grid: each would write into the other's runs."""
    lock = folder / ".lock"
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # A file rather than the folder: across machines NFS only honours locks on files.
        lock.touch()
    with exclusive(lock, "another --out", "wait for it, or choose another --out"):
        yield
