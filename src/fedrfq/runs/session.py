"""Runs with their directories: started, checkpointed, resumed, summed up."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedrfq import data
from fedrfq.consensus.rules import Rules
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.federation.round_log import stands
from fedrfq.files.atomic import open_files
from fedrfq.files.locks import alone
from fedrfq.files.strict_json import to_json
from fedrfq.learning.evaluation import RoundOutcome, RoundRecord
from fedrfq.learning.round_loop import Diverged, LoopState, RoundLoop
from fedrfq.methods import METHODS
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.runs.run_directory import RunDirectory, common_round
from fedrfq.runs.snapshot import PrototypeSnapshot, save_shares, shares

_SPARE = 256  # open files besides the runs'
_VERSIONS = ("fedrfq", "torch", "numpy", "scikit-learn", "mlxtend")


def pick_device(name: str, deterministic: bool = False) -> torch.device:
    """`auto` takes CUDA where it is. Deterministic: the same bytes on the same machine, on CUDA at some cost."""
    cuda = torch.cuda.is_available()
    try:
        device = torch.device(("cuda" if cuda else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise UserError(f"--device is auto, cpu, cuda or cuda:N, not '{name}'") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device is auto, cpu, cuda or cuda:N, not '{name}'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"--device {name}: PyTorch finds {torch.cuda.device_count()} CUDA devices here; use --device cpu"
        )
    if deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return device


@dataclass
class Session:
    """One run, or several stacked into one program, from where they stand to their last round. No other process can have
    their directories until it is closed, or forgotten."""

    loop: RoundLoop
    runs: tuple[RunDirectory, ...]
    state: LoopState
    sent: tuple[
        Uploads, ...
    ] = ()  # in the last round, a run each; none before a round was trained here
    held: ExitStack = field(default_factory=ExitStack)  # the runs' locks

    @staticmethod
    def begin(
        experiments: Sequence[Experiment],
        device: torch.device,
        out: Path,
        dataset: Dataset | None = None,
    ) -> Session:
        """Fresh directories; nothing is written before the experiment has been found possible."""
        dataset = dataset or data.load(experiments[0].data.name)
        loop = RoundLoop(experiments, dataset, device)
        state = loop.start()
        runs = [
            RunDirectory.create(out, experiment, environment(loop, r))
            for r, experiment in enumerate(experiments)
        ]
        with _alone(runs) as held:
            for run, federation, partition in zip(
                runs, loop.federations(), loop.partitions, strict=True
            ):
                save_shares(run.path, shares(partition, dataset))
                if federation is not None:
                    run.begin_audit(federation)
                stack = [os.path.relpath(other.path, run.path) for other in runs]
                run.write(
                    "environment.json",
                    to_json({**run.environment(), "stack": stack}, indent=2) + "\n",
                )
            return Session(loop, tuple(runs), state, held=held.pop_all())

    @staticmethod
    def resume(path: Path, device: torch.device) -> Session:
        """From the newest checkpoint, with the runs it was stacked with: kernels depend on what is stacked."""
        runs = tuple(RunDirectory.open(other) for other in RunDirectory.open(path).stack())
        with _alone(runs) as held:
            return Session(*_standing(runs, device), held=held.pop_all())

    def close(self) -> None:
        """Let another process have the runs."""
        self.held.close()

    __del__ = close

    @property
    def rounds(self) -> int:
        return self.loop.experiments[0].rounds

    def advance(self) -> Iterator[list[RoundOutcome]]:
        """Each round's outcomes, a run each, recorded before they are yielded."""
        every = self.loop.experiments[0].checkpoint
        for run in self.runs:
            run.rewind(self.state.round)  # an interrupted round may have left its record
        while self.state.round < self.rounds:
            state, outcomes = self._next()
            for run, outcome in zip(self.runs, outcomes, strict=True):
                run.append(outcome)
            self.sent = tuple(outcome.sent for outcome in outcomes)
            self.state = state  # only now: an interrupt before this line repeats the round, and no record is missing
            if self.state.round % every == 0 or self.state.round == self.rounds:
                self.checkpoint()
            yield outcomes

    def _next(self) -> tuple[LoopState, list[RoundOutcome]]:
        try:
            return self.loop.advance(self.state)
        except Diverged as error:
            last = "none yet"
            if self.state.round:
                last = str(self.checkpoint())
            raise Diverged(error.runs, f"; last good checkpoint: {last}") from error

    def checkpoint(self) -> Path:
        """Where the runs stand, on disk; older checkpoints go only when every run of the stack has its new one."""
        paths = [run.save(part(self.loop, self.state, r)) for r, run in enumerate(self.runs)]
        for run in self.runs:
            run.prune(self.state.round)
        return paths[0]

    def finish(self) -> list[dict[str, Any]]:
        """The summaries, written beside the records, and the last round's prototypes."""
        results = []
        for run, sent, globals_ in zip(self.runs, self.sent, self.state.globals_, strict=False):
            if sent.clients:
                PrototypeSnapshot.of(self.state.round, sent, globals_).save(run.path)
        for r, silhouettes in enumerate(self.loop.silhouettes(self.state)):
            result = summary(self.runs[r], self.loop.experiments[r], silhouettes)
            self.runs[r].write("result.json", to_json(result, indent=2) + "\n")
            results.append(result)
        return results


def _alone(runs: Sequence[RunDirectory]) -> ExitStack:
    """The runs' directories, for this process alone."""
    open_files(len(runs) + _SPARE)
    with ExitStack() as held:
        for run in runs:
            held.enter_context(
                alone(
                    run.path,
                    "a run's directory",
                    "it trains this run; wait for its end, or stop it",
                )
            )
        return held.pop_all()


def _standing(
    runs: tuple[RunDirectory, ...], device: torch.device
) -> tuple[RoundLoop, tuple[RunDirectory, ...], LoopState]:
    """Runs of one stack as they stand after their newest checkpoint; what was recorded since is forgotten."""
    experiments = [run.experiment() for run in runs]
    dataset = data.load(experiments[0].data.name)
    recorded = runs[0].environment().get("data", {}).get("sha256")
    if dataset.sha256 != recorded:
        raise UserError(
            f"the data changed: the run began on sha256 {recorded}, found {dataset.sha256}; restore the data"
        )
    loop = RoundLoop(experiments, dataset, device)
    check_federations(runs, loop)
    number = common_round(runs)
    if number:
        state = join([run.load(number, device) for run in runs])
    else:
        state = loop.start()
    check_agreed(runs, loop, state)
    for run in runs:
        run.rewind(number)
    return loop, runs, state


def part(loop: RoundLoop, state: LoopState, r: int) -> LoopState:
    """Run `r`'s share of the state."""
    rows = [loop.rows(r, clients) for clients in loop.cohorts]
    params = tuple(
        {name: p[s] for name, p in own.items()} for own, s in zip(state.params, rows, strict=True)
    )
    own = loop.rows(r, range(loop.experiments[0].method.centres))
    centres = {name: p[own] for name, p in state.centres.items()}
    globals_ = (state.globals_[r],)
    memory = (state.memory[r],)
    agreed = (state.agreed[r],)
    return replace(
        state, params=params, globals_=globals_, memory=memory, centres=centres, agreed=agreed
    )


def join(states: Sequence[LoopState]) -> LoopState:
    """Runs' states as one, stacked in order."""
    params = tuple(
        _stacked(cohort) for cohort in zip(*(state.params for state in states), strict=True)
    )
    globals_ = tuple(state.globals_[0] for state in states)
    memory = tuple(state.memory[0] for state in states)
    centres = _stacked([state.centres for state in states])
    agreed = tuple(state.agreed[0] for state in states)
    return LoopState(states[0].round, params, globals_, memory, centres, agreed)


def check_federations(runs: Sequence[RunDirectory], loop: RoundLoop) -> None:
    """That each run goes on with the committee it began with."""
    for run, federation in zip(runs, loop.federations(), strict=True):
        if run.audited():
            before = (run.path / "federation.toml").read_bytes()
        else:
            before = None
        if before != (None if federation is None else federation.text.encode()):
            raise UserError(
                f"{run.path / 'loop.toml'} is not that of experiment.toml beside it: restore either"
            )


def check_agreed(runs: Sequence[RunDirectory], loop: RoundLoop, state: LoopState) -> None:
    """That each checkpoint has what its committee certified last."""
    for run, federation, last in zip(runs, loop.federations(), state.agreed, strict=True):
        if (
            federation is not None
            and state.round
            and not stands(Rules(federation.roster), state.round, last)
        ):
            path = run.checkpoints()[state.round]
            raise UserError(
                f"{path} does not have what the committee agreed on last: restore it, or remove it and resume"
            )


def _stacked(runs: Sequence[Params]) -> Params:
    return {name: torch.cat([own[name] for own in runs]) for name in runs[0]}


def summary(
    run: RunDirectory, experiment: Experiment, silhouettes: tuple[float, float] | tuple[None, None]
) -> dict[str, Any]:
    """What `--json` prints: the last round's figures, totals over all rounds."""
    records = run.rounds()
    last = records[-1]
    train = sum(record.seconds_train for record in records)
    return {
        "method": name_of(METHODS, experiment.method),
        "data": experiment.data.name,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "rounds": last.round,
        "accuracy_mean": last.accuracy_mean,
        "accuracy_std": last.accuracy_std,
        "prototype_accuracy_mean": last.prototype_accuracy_mean,
        "prototype_failure": last.prototype_failure,
        "honest_accuracy_mean": last.honest_accuracy_mean,
        "honest_prototype_accuracy_mean": last.honest_prototype_accuracy_mean,
        **detection(records),
        "silhouette": silhouettes[0],
        "silhouette_unpooled": silhouettes[1],
        "parameters_per_round": last.parameters_up,
        "bytes_per_round": last.bytes_up,
        "collapsed_clients": last.collapsed_clients,
        **agreement(records),
        "samples_per_second": sum(record.samples for record in records) / train,
        "seconds": sum(record.seconds for record in records),
        "run_dir": str(run.path),
    }


def detection(records: Sequence[RoundRecord]) -> dict[str, float | None]:
    """Over all rounds: the share of dropped uploads that were attackers', and of attackers' uploads that were dropped."""
    found = sum(r.attackers_filtered for r in records)
    attackers = sum(r.attackers for r in records)
    dropped = sum(len(r.filtered) + len(r.refused) for r in records)
    return {
        "detector_precision": found / dropped if dropped else None,
        "detector_recall": found / attackers if attackers else None,
    }


def agreement(records: Sequence[RoundRecord]) -> dict[str, int | None]:
    """What the committee's agreeing took over all rounds; none with one trusted server."""
    if any(record.view is None for record in records):
        return {
            "view_changes": None,
            "evidence": None,
            "committee_messages": None,
            "committee_bytes": None,
        }
    return {
        "view_changes": sum(record.view or 0 for record in records),
        "evidence": sum(record.evidence or 0 for record in records),
        "committee_messages": sum(record.committee_messages or 0 for record in records),
        "committee_bytes": sum(record.committee_bytes or 0 for record in records),
    }


def environment(loop: RoundLoop, r: int) -> dict[str, Any]:
    device = loop.device
    cuda = device.type == "cuda"
    return {
        **here(),
        "device": _hardware(device),
        "device_type": device.type,
        "threads": torch.get_num_threads(),
        "deterministic": not cuda or torch.are_deterministic_algorithms_enabled(),
        "data": described(loop.dataset),
        "partition": loop.partitions[r].realised,
    }


def here() -> dict[str, Any]:
    """The program and the machine."""
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _VERSIONS},
        },
        "platform": platform.platform(),
        "device": _hardware(torch.device("cpu")),
        "revision": _revision(),
    }


def described(dataset: Dataset) -> dict[str, Any]:
    """What a trained model needs of its data to be used without it."""
    return {
        "name": dataset.name,
        "sha256": dataset.sha256,
        "classes": list(dataset.classes),
        "shape": list(dataset.shape),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }


def differences(run: RunDirectory, device: torch.device) -> list[str]:
    """What is not as it was when the run began, and may change the last bits of what follows."""
    before = run.environment()
    then = {
        "torch": before["versions"].get("torch"),
        **{key: before.get(key) for key in ("device", "threads")},
    }
    now = {
        "torch": _version("torch"),
        "device": _hardware(device),
        "threads": torch.get_num_threads(),
    }
    return [f"{key} {then[key]} → {now[key]}" for key in now if then[key] != now[key]]


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _revision() -> str | None:
    """The git revision of the program's own checkout, if it runs from one; "+" where files differ from it."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def run(
    experiment: Experiment, device: str = "auto", out: Path | str = "runs"
) -> Iterator[RoundRecord]:
    """Runs the experiment, yielding each round's record; the directory is written as by the command line."""
    with closing(Session.begin([experiment], pick_device(device), Path(out))) as session:
        for outcomes in session.advance():
            yield outcomes[0].record
        session.finish()
