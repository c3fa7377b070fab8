"""Runs and their directories: starting, checkpointing, resuming, finishing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedrfq.consensus.rules import Rules
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation import decisions
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import stands
from fedrfq.files.atomic import raise_open_file_limit
from fedrfq.files.locks import exclusive
from fedrfq.files.strict_json import to_json
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.public.classifier_file import save_classifiers
from fedrfq.learning.round_loop import Diverged, LoopState, RoundLoop
from fedrfq.models.stacked import Params
from fedrfq.privacy.drawn_uploads import FOLDER
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.runs import failure, privacy_record, trail
from fedrfq.runs.callbacks import Callback, Callbacks
from fedrfq.runs.environment import described, differences, environment, here
from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.result import agreement, detection, summary
from fedrfq.runs.run_directory import SO_FAR, RunDirectory, common_round
from fedrfq.runs.snapshot import PrototypeSnapshot, save_shares, shares
from fedrfq.runs.trackers import trackers

__all__ = [
    "Session",
    "agreement",
    "described",
    "detection",
    "differences",
    "environment",
    "here",
    "join",
    "part",
    "pick_device",
    "summary",
]

# Open files that a process needs besides the locks of its runs.
_SPARE_FILES = 256


def pick_device(name: str, deterministic: bool = False) -> torch.device:
    """Return the device of that name; `auto` is CUDA where there is any, else the CPU.

    With `deterministic`, the same machine gives the same bytes; on CUDA this costs some speed.
    """
    resolved = name
    if name == "auto":
        resolved = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(resolved)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"--device takes auto, cpu, cuda, cuda:N or mps, found '{name}'")
    if device.type == "mps":
        _check_mps()
    available = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= available:
        raise UserError(
            f"--device {name}: PyTorch finds {available} CUDA devices here; use --device cpu"
        )
    if deterministic and device.type == "cuda":
        # cuBLAS is deterministic only with a fixed workspace, chosen before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return device


def _check_mps() -> None:
    """Let Apple's GPUs through where PyTorch has them; nobody has tried them here."""
    if not torch.backends.mps.is_available():
        raise UserError("--device mps: PyTorch finds no Apple GPU here; use --device cpu")
    warnings.warn("--device mps is untested: compare a short run with --device cpu", stacklevel=3)


@dataclass
class Session:
    """One run, or several stacked into one program, from their current round to their last.

    No other process can use the runs' directories until the session is closed or deleted.
    """

    loop: RoundLoop
    runs: tuple[RunDirectory, ...]
    state: LoopState
    # Each run's uploads of the last round; empty before this session has trained a round.
    sent: tuple[Uploads, ...] = ()
    # The locks on the runs' directories.
    held: ExitStack = field(default_factory=ExitStack)
    callbacks: Callbacks = field(default_factory=Callbacks)
    # What callbacks see of each run.
    seen: tuple[RecordedRun, ...] = ()

    def __post_init__(self) -> None:
        self.seen = tuple(RecordedRun(run) for run in self.runs)

    @staticmethod
    def begin(
        experiments: Sequence[Experiment],
        device: torch.device,
        out: Path,
        dataset: Dataset | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> Session:
        """Start the experiments as one stack, each in a fresh directory under `out`."""
        dataset = dataset or experiments[0].data.load()
        # Before any directory is created: these raise where the experiment is not possible.
        tracking = trackers(experiments[0].track)
        loop = RoundLoop(experiments, dataset, device)
        state = loop.start()
        for experiment in experiments:
            # One image shows whether the map's weights are there and the images large enough.
            experiment.public.raw(torch.from_numpy(dataset.train_x[:1]))
            experiment.check_privacy()
        runs = [
            RunDirectory.create(out, experiment, environment(loop, r))
            for r, experiment in enumerate(experiments)
        ]
        loop.public.keep([run.path / FOLDER for run in runs])
        with _lock_all(runs) as held:
            for run, federation, partition in zip(
                runs, loop.federations(), loop.partitions, strict=True
            ):
                save_shares(run.path, shares(partition, dataset))
                if federation is not None:
                    run.begin_audit(federation)
                # Relative, so that the folder of all runs can be moved.
                stack = [os.path.relpath(other.path, run.path) for other in runs]
                recorded = {**run.environment(), "stack": stack}
                run.write("environment.json", to_json(recorded, indent=2) + "\n")
            told = Callbacks([*callbacks, *tracking])
            return Session(loop, tuple(runs), state, held=held.pop_all(), callbacks=told)

    @staticmethod
    def resume(
        path: Path,
        device: torch.device,
        dataset: Dataset | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> Session:
        """Continue from the newest checkpoint, together with the runs it was stacked with.

        Stacking the same runs again matters: the kernels, and so the last bits, depend on it. A
        `dataset` is given where the run's own cannot be loaded by its name.
        """
        runs = tuple(RunDirectory.open(other) for other in RunDirectory.open(path).stack())
        check_stack(path, runs)
        tracking = trackers(runs[0].experiment().track)
        with _lock_all(runs) as held:
            loop, state = _restore(runs, device, dataset)
            told = Callbacks([*callbacks, *tracking])
            return Session(loop, runs, state, held=held.pop_all(), callbacks=told)

    def close(self) -> None:
        """Release the runs' directories to other processes."""
        self.held.close()

    __del__ = close

    @property
    def rounds(self) -> int:
        """The number of the last round."""
        return self.loop.experiments[0].rounds

    def advance(self) -> Iterator[list[RoundOutcome]]:
        """Train round after round; yield each one's outcomes, one per run, after recording them.

        Callbacks hear of the start and of each round before its outcomes are yielded.
        """
        self._tell("on_start")
        try:
            yield from self._advance()
        except Exception as error:
            self._keep_last_round()
            for run in self.runs:
                failure.note(run.path, error)
            self._tell("on_end", "failed")
            raise

    def _keep_last_round(self) -> None:
        """Leave a checkpoint of the last whole round, whatever has failed since."""
        if not self.state.round:
            return
        # Where that fails as well, the first error is the one to tell.
        with suppress(OSError, UserError):
            for run in self.runs:
                run.rewind(self.state.round)
            self.checkpoint()

    def _advance(self) -> Iterator[list[RoundOutcome]]:
        for run in self.runs:
            # An interrupted round may have left its record.
            run.rewind(self.state.round)
            run.drop_result_so_far()
        while self.state.round < self.rounds:
            state, outcomes = self._train_round()
            for r, (run, outcome) in enumerate(zip(self.runs, outcomes, strict=True)):
                privacy_record.save(run, self.loop.public.claims(r))
                trail.append(run.path, self.rounds, state.round, state.globals_[r])
                run.append(outcome)
            self.sent = tuple(outcome.sent for outcome in outcomes)
            # Only now: an interrupt before this line repeats the round, so no record is missing.
            self.state = state
            if self.loop.experiments[0].at_checkpoint(state.round):
                self.checkpoint()
            for seen, outcome in zip(self.seen, outcomes, strict=True):
                self.callbacks.tell("on_round", seen, outcome.record)
            yield outcomes

    def _tell(self, event: str, *more: str) -> None:
        for seen in self.seen:
            self.callbacks.tell(event, seen, *more)

    def _train_round(self) -> tuple[LoopState, list[RoundOutcome]]:
        try:
            return self.loop.advance(self.state)
        except Diverged as error:
            last = "none yet"
            if self.state.round:
                last = str(self.checkpoint())
            raise Diverged(error.runs, f"; last good checkpoint: {last}") from error

    def checkpoint(self) -> Path:
        """Save the state of every run and return the first one's file."""
        paths = [run.save(part(self.loop, self.state, r)) for r, run in enumerate(self.runs)]
        # Older checkpoints go only now: a stack resumes from a round that all its runs have.
        for run in self.runs:
            run.prune(self.state.round)
        return paths[0]

    def stop(self) -> None:
        """Leave a checkpoint of the last whole round, from which the runs can be continued."""
        for run in self.runs:
            # The round under way may have left its record.
            run.rewind(self.state.round)
        self.checkpoint()
        self._tell("on_end", "stopped")

    def save_result_so_far(self) -> None:
        """Write the figures of the rounds until now, for runs that are stopped early."""
        self._save_classifiers()
        for r, silhouettes in enumerate(self.loop.silhouettes(self.state)):
            result = summary(self.runs[r], self.loop.experiments[r], silhouettes)
            result |= privacy_record.summary(self.loop.public.claims(r))
            self.runs[r].write(SO_FAR, to_json(result, indent=2) + "\n")

    def finish(self) -> list[dict[str, Any]]:
        """Write and return each run's result; write the last round's prototypes, too."""
        # `sent` is empty if a finished run was resumed; its prototypes were written before.
        for r, sent in enumerate(self.sent):
            if sent.clients and self.state.globals_[r].present_J.any():
                self._snapshot(r, sent).save(self.runs[r].path)
        self._save_classifiers()
        results = []
        for r, silhouettes in enumerate(self.loop.silhouettes(self.state)):
            result = summary(self.runs[r], self.loop.experiments[r], silhouettes)
            result |= privacy_record.summary(self.loop.public.claims(r))
            self.runs[r].write("result.json", to_json(result, indent=2) + "\n")
            self.runs[r].drop_result_so_far()
            results.append(result)
        self._tell("on_end", "finished")
        return results

    def _snapshot(self, r: int, sent: Uploads) -> PrototypeSnapshot:
        """Return run `r`'s last prototypes; what was sent may have been public statistics."""
        globals_ = self.state.globals_[r]
        if self.loop.experiments[r].public.due(self.state.round):
            return PrototypeSnapshot.only_global(self.state.round, globals_)
        return PrototypeSnapshot.of(self.state.round, sent, globals_)

    def _save_classifiers(self) -> None:
        """Write what clients made of the statistics on a public map, for `fedrfq predict`."""
        for r, known in enumerate(self.state.public):
            if known is None:
                continue
            made = self.loop.public.exchanges[r].classifiers(known)
            save_classifiers(self.runs[r].path, made, self.loop.held_of(r))


def _lock_all(runs: Sequence[RunDirectory]) -> ExitStack:
    """Lock the runs' directories for this process."""
    # Every lock is an open file.
    raise_open_file_limit(len(runs) + _SPARE_FILES)
    with ExitStack() as held:
        for run in runs:
            remedy = "it is training this run; wait until it ends, or stop it"
            held.enter_context(exclusive(run.path, "a run directory", remedy))
        return held.pop_all()


def _restore(
    runs: tuple[RunDirectory, ...], device: torch.device, dataset: Dataset | None
) -> tuple[RoundLoop, LoopState]:
    """Return the loop and state of a stack at its newest common checkpoint.

    Records of later rounds are dropped; those rounds will be trained again.
    """
    experiments = [run.experiment(exact=True) for run in runs]
    dataset = dataset or experiments[0].data.load()
    recorded = runs[0].environment().get("data", {}).get("sha256")
    if dataset.sha256 != recorded:
        raise UserError(
            f"the data changed: the run began on sha256 {recorded}, found {dataset.sha256}; "
            "restore the data"
        )
    loop = RoundLoop(experiments, dataset, device)
    # What was drawn before the interruption is not drawn again.
    loop.public.keep([run.path / FOLDER for run in runs])
    check_federations(runs, loop)
    number = common_round(runs)
    if number:
        states = [run.load(number, loop.device) for run in runs]
        check_states(runs, loop, states)
        state = join(states)
    else:
        state = loop.start()
    check_agreed(runs, loop, state)
    # All checks come first: after a failed one, every record must still be there.
    for run in runs:
        run.rewind(number)
    return loop, state


def part(loop: RoundLoop, state: LoopState, r: int) -> LoopState:
    """Return run `r`'s part of the state of a stack."""
    params = []
    for clients, cohort in zip(loop.cohorts, state.params, strict=True):
        rows = loop.rows(r, clients)
        params.append({name: p[rows] for name, p in cohort.items()})
    centre_rows = loop.rows(r, range(loop.experiments[0].method.centres))
    return replace(
        state,
        params=tuple(params),
        globals_=(state.globals_[r],),
        memory=(state.memory[r],),
        centres={name: p[centre_rows] for name, p in state.centres.items()},
        agreed=(state.agreed[r],),
        server=(state.server[r],),
        public=(state.public[r],),
        attack=(state.attack[r],),
    )


def join(states: Sequence[LoopState]) -> LoopState:
    """Return the states of single runs as the state of one stack, in order."""
    cohorts = zip(*(state.params for state in states), strict=True)
    return LoopState(
        states[0].round,
        tuple(_concatenated(cohort) for cohort in cohorts),
        tuple(state.globals_[0] for state in states),
        tuple(state.memory[0] for state in states),
        _concatenated([state.centres for state in states]),
        tuple(state.agreed[0] for state in states),
        tuple(state.server[0] for state in states),
        tuple(state.public[0] for state in states),
        tuple(state.attack[0] for state in states),
    )


def _concatenated(runs: Sequence[Params]) -> Params:
    return {name: torch.cat([params[name] for params in runs]) for name in runs[0]}


def check_stack(path: Path, runs: Sequence[RunDirectory]) -> None:
    """Check that all runs of a stack name the same ones.

    All of them are written to: a run's directory alone must not say which.
    """
    named = [run.path.resolve() for run in runs]
    for run in runs:
        if [other.resolve() for other in run.stack()] != named:
            raise UserError(
                f"{path} says that it is stacked with {run.path}, which says otherwise: "
                "restore environment.json"
            )


def check_federations(runs: Sequence[RunDirectory], loop: RoundLoop) -> None:
    """Check that each run continues with the committee it began with."""
    for run, federation in zip(runs, loop.federations(), strict=True):
        path = run.path / "federation.toml"
        before = run.federation_text() if run.audited() else None
        now = None if federation is None else federation.text
        if before != now:
            if before is not None:
                decisions.check(Federation.read(before, str(path)).decisions, str(path))
            raise UserError(
                f"{path} does not belong to the experiment.toml beside it: restore one of the two"
            )


def check_states(
    runs: Sequence[RunDirectory], loop: RoundLoop, states: Sequence[LoopState]
) -> None:
    """Check that the checkpoints are of models and prototypes such as the experiments have."""
    start = loop.start()
    for r, (run, state) in enumerate(zip(runs, states, strict=True)):
        if _kinds(state) != _kinds(part(loop, start, r)):
            raise UserError(
                f"{run.checkpoints()[state.round]} is not of the experiment's models and data: "
                "restore it, or remove it and resume"
            )


def _kinds(state: LoopState) -> list[dict[str, tuple[object, ...]]]:
    """Return the shapes and types of what a run's models and global prototypes are made of."""
    globals_ = {
        "present": torch.from_numpy(state.globals_[0].present_J),
        "values": torch.from_numpy(state.globals_[0].values_JV),
    }
    return [
        {name: (tuple(p.shape), p.dtype) for name, p in named.items()}
        for named in (*state.params, state.centres, globals_)
    ]


def check_agreed(runs: Sequence[RunDirectory], loop: RoundLoop, state: LoopState) -> None:
    """Check that each checkpoint has what the run's committee certified last."""
    if not state.round:
        return
    for run, federation, last in zip(runs, loop.federations(), state.agreed, strict=True):
        if federation is None:
            continue
        if not stands(Rules(federation.roster), state.round, last):
            path = run.checkpoints()[state.round]
            raise UserError(
                f"{path} does not have what the committee agreed on last: "
                "restore it, or remove it and resume"
            )
