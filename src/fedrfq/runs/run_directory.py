"""A run's directory: the experiment, the environment, a record of every round, and checkpoints.

experiment.toml   the resolved experiment
environment.json  versions, device, data hash, revision, partition
rounds.jsonl      one line per round, flushed as it is written
clients.csv       one line per round and client
trail.jsonl       the global prototypes of up to fifty rounds
checkpoints/      parameters, global prototypes and models, statistics on a public map, the
                  detector's memory (safetensors); only the newest one is kept
result.json       the summary of a finished run
result-so-far.json  the same of a run that was stopped early from Python
privacy.json      with noise: what may be claimed of each client's privacy
privacy/          with noise: every upload that was drawn, once and for all
failed.json       why a run failed, until it goes on
partition.csv     how many samples of each class each client holds
prototypes.safetensors  what the clients of a finished run sent in the last round, and the result
public.safetensors  with a public map: every client's classifier of all classes
leakage.json, leakage.png  what `fedrfq audit-privacy` won from the uploads

With a committee, so that `fedrfq verify` can check every decision:
federation.toml   its public keys and what it computes; the run's id is this file's hash
audit.log         one entry per round: the certificate, what the set of uploads follows from,
                  evidence
bodies.bin        one entry per round: the signed uploads, and what was decided
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrfq.committee import AgreementReport
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.federation import federation_file
from fedrfq.federation.federation_file import Federation
from fedrfq.files import hash_chain, regular, tensors, toml
from fedrfq.files.atomic import reporting_write_errors, write_atomically
from fedrfq.files.csv_text import csv_text
from fedrfq.files.strict_json import from_json, to_json
from fedrfq.learning.all_classes import COMMON_COLUMNS
from fedrfq.learning.evaluation import RoundOutcome, RoundRecord
from fedrfq.learning.round_loop import LoopState
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.runs import failure, trail
from fedrfq.runs.recorded_rounds import parsed

CLIENT_COLUMNS = (
    "round",
    "client",
    "trained",
    "classes",
    "samples",
    "accuracy",
    "prototype_accuracy",
    "prototype_accuracy_own",
    "loss_classification",
    "loss_prototype",
    "malicious",
    "verdict",
    "score",
    "reason",
    # Last, so that a file from before there was a common test set has the first columns.
    *COMMON_COLUMNS,
    # Of the upload, in percent; after these, as it is newer still.
    "weight",
)

# Those of a file that a run may be resumed with: all, or those from before the common test.
_KNOWN_COLUMNS = (CLIENT_COLUMNS, CLIENT_COLUMNS[:-1], CLIENT_COLUMNS[: -1 - len(COMMON_COLUMNS)])

# The summary of a run that was stopped early. It is not result.json: that one tells studies and
# audits that all rounds are there.
SO_FAR = "result-so-far.json"
# What may be claimed of each client's privacy.
PRIVACY = "privacy.json"

# What is read of files, which may be anybody's, in bytes: of rounds.jsonl, of files with a few
# facts, and of a line of clients.csv.
MAX_RECORDS_BYTES = 1 << 28
_MAX_FACTS_BYTES = 1 << 26
MAX_ROW_BYTES = 1 << 16

# The files that only a run with a committee has, besides federation.toml.
AUDITED = ("audit.log", "bodies.bin")


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run, and what can be read from and written to it."""

    path: Path

    @staticmethod
    def create(out: Path, experiment: Experiment, environment: Mapping[str, Any]) -> RunDirectory:
        """Create a fresh directory OUT/NAME/ID.

        The id is the time (UTC), the seed and a few digits of the experiment's hash.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        base = f"{stamp}-seed{experiment.seed}-{experiment.hash()[:6]}"
        with reporting_write_errors(out):
            path = _fresh(out / experiment.name, base)
            (path / "checkpoints").mkdir()
        run = RunDirectory(path)
        run.write("experiment.toml", toml.dump(experiment.table()))
        run.write("environment.json", to_json(environment, indent=2) + "\n")
        run.write("rounds.jsonl", "")
        run.write("clients.csv", ",".join(CLIENT_COLUMNS) + "\n")
        return run

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """Return the existing run directory at `path`."""
        if not (path / "experiment.toml").is_file():
            raise UserError(
                f"{path} is not a run directory: it has no experiment.toml; "
                "name a directory such as runs/NAME/ID"
            )
        return RunDirectory(path)

    def experiment(self, exact: bool = False) -> Experiment:
        """Return the experiment that the run was started with.

        With `exact`, as whoever goes on with the run needs it, its plugins must not have changed.
        """
        path = self.path / "experiment.toml"
        text = self.text(path.name, toml.MAX_BYTES)
        try:
            table = toml.plain(text)
        except ValueError as error:
            raise UserError(f"{path} cannot be read as TOML: {error}") from error
        try:
            return from_table(table, exact)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def environment(self) -> dict[str, Any]:
        """Return environment.json; the sections that readers rely on are tables, maybe empty."""
        environment = self._json("environment.json")
        for section in ("versions", "data", "partition"):
            if not isinstance(environment.setdefault(section, {}), dict):
                raise UserError(
                    f"{self.path / 'environment.json'}: {section} is not a table; restore the file"
                )
        return environment

    def stack(self) -> list[Path]:
        """Return the directories of the runs it is stacked with, its own among them."""
        environment = self.environment()
        if environment.get("engine") == "flower":
            raise UserError(
                f"{self.path} was run on Flower; resume it there: "
                f"`fedrfq flower run APP --run-config \"resume='{self.path}'\"`"
            )
        stack = environment.get("stack")
        if not isinstance(stack, list) or not all(_is_path(other) for other in stack):
            raise UserError(
                f"{self.path / 'environment.json'} does not say which runs this one is "
                "stacked with; restore the file"
            )
        here = self.path.resolve()
        # A run alone keeps the path as the user wrote it, for messages.
        return [self.path if other == "." else (here / other).resolve() for other in stack]

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished run; None while it is not finished."""
        if (self.path / "result.json").is_file():
            return self._json("result.json")
        return None

    def privacy(self) -> dict[str, Any] | None:
        """Return what may be claimed of the clients' privacy; None where there is no noise."""
        if (self.path / PRIVACY).is_file():
            return self._json(PRIVACY)
        return None

    def result_so_far(self) -> dict[str, Any] | None:
        """Return the result that a run had when it was stopped early; None if it was not."""
        if (self.path / SO_FAR).is_file():
            return self._json(SO_FAR)
        return None

    def drop_result_so_far(self) -> None:
        """Remove what was written when the run was stopped or failed, as it goes on."""
        (self.path / SO_FAR).unlink(missing_ok=True)
        failure.forget(self.path)

    def rounds(self) -> list[RoundRecord]:
        """Return the recorded rounds, first to last, without a line that a crash cut short."""
        return parsed(self.path / "rounds.jsonl", self._lines("rounds.jsonl"))

    def begin_audit(self, federation: Federation) -> None:
        """Create the files of a run with a committee."""
        self.write("federation.toml", federation.text)
        for name in AUDITED:
            self.write(name, "")

    def audited(self) -> bool:
        """Return whether the run has a committee, and so an audit log."""
        return (self.path / "federation.toml").is_file()

    def federation_text(self) -> str:
        """Return the text of federation.toml, byte for byte."""
        return self.text("federation.toml", federation_file.MAX_BYTES)

    def append(self, outcome: RoundOutcome) -> None:
        """Record a round."""
        # The proofs come first: a crash in between leaves no record without them.
        if outcome.report is not None:
            self.prove(outcome.report)
        # A run from before there were all these columns goes on with those it has.
        rows = csv_text(self._client_columns(), outcome.clients, header=False)
        self._append("clients.csv", rows)
        self._append("rounds.jsonl", to_json(asdict(outcome.record)) + "\n")

    def prove(self, report: AgreementReport) -> None:
        """Append what proves a round to the audit log and the bodies."""
        with reporting_write_errors(self.path):
            hash_chain.append(self.path / "bodies.bin", report.run, report.bodies)
            hash_chain.append(self.path / "audit.log", report.run, report.entry)

    def rewind(self, number: int) -> None:
        """Drop the records of the rounds after `number`, which will be trained again."""
        rounds = self._lines("rounds.jsonl")[:number]
        recorded = len(parsed(self.path / "rounds.jsonl", rounds))
        if recorded < number:
            raise UserError(
                f"{self.path} has records of {recorded} rounds but a checkpoint of round {number}: "
                "restore rounds.jsonl"
            )
        end = self._end_of_clients(number)
        # Nothing is written before everything has been checked.
        if self.audited():
            self._rewind_proofs(number)
        trail.rewind(self.path, number)
        self.write("rounds.jsonl", "".join(f"{line}\n" for line in rounds))
        with self._changing("clients.csv") as file:
            os.ftruncate(file, end)

    def _end_of_clients(self, number: int) -> int:
        """Return where the rows of the clients in the first `number` rounds end in clients.csv."""
        wanted = 1 + number * self.experiment().clients
        rows = 0
        end = 0
        # Not read as a whole: many rounds of many clients are gigabytes.
        for row in islice(self._rows("clients.csv"), wanted):
            rows += 1
            end += len(row)
        if rows < wanted or tuple(self._client_columns()) not in _KNOWN_COLUMNS:
            raise UserError(
                f"{self.path / 'clients.csv'} does not have the clients of {number} rounds: "
                "restore the file or start the run again"
            )
        return end

    def _client_columns(self) -> list[str]:
        """Return the columns of clients.csv."""
        header = next(self._rows("clients.csv"), b"")
        return header.decode().rstrip("\n").split(",")

    def _rewind_proofs(self, number: int) -> None:
        path = self.path / "federation.toml"
        root = Federation.read(self.federation_text(), str(path)).roster.run
        for name in AUDITED:
            if not (self.path / name).is_file():
                raise UserError(
                    f"{self.path / name} is missing: restore the file or start the run again"
                )
            with reporting_write_errors(self.path):
                hash_chain.cut(self.path / name, root, number)

    def checkpoints(self) -> dict[int, Path]:
        """Return the checkpoints by round, ignoring any other files there."""
        paths = {}
        folder = self.path / "checkpoints"
        # Older checkpoints are removed: elsewhere they would be somebody else's.
        regular.check_folder(folder)
        for path in sorted(folder.glob("round-*.safetensors")):
            number = path.stem.removeprefix("round-")
            if number.isdecimal():
                paths[int(number)] = path
        return paths

    def sync(self) -> None:
        """Flush all records and proofs to the disk."""
        names = ["rounds.jsonl", "clients.csv"]
        if self.audited():
            names += AUDITED
        for name in names:
            with self._changing(name) as file:
                os.fsync(file)

    def save(self, state: LoopState) -> Path:
        """Write a checkpoint and return its path."""
        # The records of its rounds reach the disk before it does: resuming relies on them.
        self.sync()
        named = {
            f"cohort{i}/{name}": p
            for i, params in enumerate(state.params)
            for name, p in params.items()
        }
        named["globals/values"] = torch.from_numpy(state.globals_[0].values_JV)
        named["globals/present"] = torch.from_numpy(state.globals_[0].present_J)
        for name, array in state.memory[0].items():
            named[f"memory/{name}"] = torch.from_numpy(array)
        for name, array in state.attack[0].items():
            named[f"attack/{name}"] = torch.from_numpy(array)
        for name, p in state.centres.items():
            named[f"centres/{name}"] = p
        for name, p in state.server[0].items():
            named[f"server/{name}"] = p
        if state.public[0] is not None:
            named["public/values"] = torch.from_numpy(state.public[0].values_JV)
            named["public/present"] = torch.from_numpy(state.public[0].present_J)
        if state.agreed[0]:
            certified = bytearray(state.agreed[0])
            named["committee/last"] = torch.frombuffer(certified, dtype=torch.uint8)
        path = self.path / "checkpoints" / f"round-{state.round:06d}.safetensors"
        metadata = {"round": str(state.round), "experiment": self.experiment().hash()}
        tensors.save(path, named, metadata)
        return path

    def prune(self, keep: int) -> None:
        """Remove all checkpoints but that of round `keep`."""
        for number, path in self.checkpoints().items():
            if number != keep:
                path.unlink(missing_ok=True)

    def load(self, number: int, device: torch.device) -> LoopState:
        """Return the state after round `number`, checked to belong to this experiment."""
        path = self.checkpoints()[number]
        named, metadata = tensors.load(path, _largest_checkpoint())
        experiment = self.experiment(exact=True)
        if metadata.get("experiment") != experiment.hash():
            raise UserError(
                f"{path} is a checkpoint of another experiment than experiment.toml says: "
                "restore one of the two"
            )
        if metadata.get("round") != str(number):
            raise UserError(
                f"{path} is a checkpoint of another round than its name says: rename it"
            )
        if not {"globals/present", "globals/values"} <= set(named):
            raise UserError(
                f"{path} is not a checkpoint of this program, it has no global prototypes: "
                "remove it and resume"
            )
        present_J = named["globals/present"].numpy().astype(np.bool_)
        globals_ = Globals(present_J, named["globals/values"].numpy())
        params = tuple(
            _on(device, _under(named, f"cohort{i}")) for i in range(len(experiment.models()))
        )
        memory = {name: p.numpy() for name, p in _under(named, "memory").items()}
        centres = _on(device, _under(named, "centres"))
        agreed = b""
        if "committee/last" in named:
            agreed = named["committee/last"].numpy().tobytes()
        return LoopState(
            round=number,
            params=params,
            globals_=(globals_,),
            memory=(memory,),
            centres=centres,
            agreed=(agreed,),
            server=(_under(named, "server"),),
            public=(_statistics(named),),
            attack=({name: p.numpy() for name, p in _under(named, "attack").items()},),
        )

    def last(self, device: torch.device) -> LoopState:
        """Return the state at the newest checkpoint."""
        checkpoints = self.checkpoints()
        if not checkpoints and self.environment().get("engine") == "flower":
            raise UserError(
                f"{self.path} has no models: those of a simulated run on Flower are there when it"
                " has ended, and those of a real federation stay with its nodes"
            )
        if not checkpoints and self.result() is not None:
            raise UserError(
                f"{self.path} has ended and its models were not kept: train them again with "
                f"`fedrfq run {self.path}/experiment.toml`"
            )
        if not checkpoints:
            raise UserError(
                f"{self.path} has no checkpoint yet: `fedrfq resume {self.path}` continues the run"
            )
        return self.load(max(checkpoints), device)

    def write(self, name: str, text: str) -> None:
        """Write a file of the directory atomically."""
        write_atomically(self.path / name, text.encode())

    def _append(self, name: str, text: str) -> None:
        with self._changing(name) as file, os.fdopen(file, "ab", closefd=False) as stream:
            stream.write(text.encode())

    @contextmanager
    def _changing(self, name: str) -> Iterator[int]:
        """Open a file of the directory for changing it, and never one elsewhere."""
        with reporting_write_errors(self.path / name):
            handle = regular.descriptor(self.path / name, os.O_RDWR | os.O_APPEND)
            try:
                yield handle
            finally:
                os.close(handle)

    def _rows(self, name: str) -> Iterator[bytes]:
        """Yield the file's complete lines, one after the other."""
        try:
            yield from regular.lines(self.path / name, MAX_ROW_BYTES)
        except OSError as error:
            raise UserError(f"cannot read {self.path / name}: {error}") from error

    def _lines(self, name: str) -> list[str]:
        """Return the file's complete lines; a crash may have cut the last one short."""
        # Not splitlines(), which also splits at characters that a record may contain.
        return self.text(name, MAX_RECORDS_BYTES).split("\n")[:-1]

    def text(self, name: str, max_bytes: int) -> str:
        """Return the text of a file of the directory, byte for byte."""
        path = self.path / name
        try:
            return regular.read_text(path, max_bytes)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}; restore the file") from error

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = from_json(self.text(name, _MAX_FACTS_BYTES))
        except ValueError as error:
            raise UserError(f"cannot read {self.path / name}: {error}") from error
        if not isinstance(value, dict):
            raise UserError(
                f"{self.path / name}: expected a JSON object, found {type(value).__name__}; "
                "restore the file"
            )
        return value


def _largest_checkpoint() -> int:
    """Return half of the machine's memory, in bytes.

    A checkpoint may be as large as the models are, and a sparse file may state any size.
    """
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _is_path(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _under(named: Mapping[str, Tensor], folder: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `folder`/, without that prefix."""
    prefix = f"{folder}/"
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in named.items()
        if name.startswith(prefix)
    }


def _on(device: torch.device, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in named.items()}


def _statistics(named: Mapping[str, Tensor]) -> Globals | None:
    """Return a checkpoint's statistics on the public map, if it has any."""
    if not {"public/present", "public/values"} <= set(named):
        return None
    present_J = named["public/present"].numpy().astype(np.bool_)
    return Globals(present_J, named["public/values"].numpy())


def common_round(runs: Sequence[RunDirectory]) -> int:
    """Return the newest round of which all runs have a checkpoint; 0 if there is none."""
    return max(set.intersection(*(set(run.checkpoints()) for run in runs)), default=0)


def _fresh(parent: Path, base: str) -> Path:
    """Create and return a new folder; runs started within one second get a number each."""
    names = [base, *(f"{base}-{attempt}" for attempt in range(1, 1000))]
    for name in names:
        path = parent / name
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise UserError(f"{parent} has a thousand runs started this second: choose another --out")
