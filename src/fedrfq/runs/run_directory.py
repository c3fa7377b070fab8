"""A run's directory: what was run, where, every round as it happened, and checkpoints to go on from.

experiment.toml   the resolved experiment
environment.json  versions, device, data hash, revision, partition
rounds.jsonl      a line a round, flushed as it is written
clients.csv       a line a round and client
checkpoints/      parameters, global prototypes and models, the detector's memory (safetensors); the newest one stays
result.json       the summary of a finished run
partition.csv     how many samples of each class each client holds
prototypes.safetensors  what the clients sent in the last round, and what came back; of a finished run

With a committee, so that `fedrfq verify` can check every decision:
federation.toml   its public keys and what it computes; the run's id is this file's hash
audit.log         an entry a round: the certificate, what the set of uploads follows from, evidence
bodies.bin        an entry a round: the signed uploads, and what was decided
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrfq.committee import AgreementReport
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.federation.federation_file import Federation
from fedrfq.files import hash_chain, tensors, toml
from fedrfq.files.atomic import write_atomically, writing
from fedrfq.files.strict_json import to_json
from fedrfq.learning.evaluation import RoundOutcome, RoundRecord
from fedrfq.learning.round_loop import LoopState
from fedrfq.prototypes.fixed_point import Globals

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
)


AUDITED = ("audit.log", "bodies.bin")


@dataclass(frozen=True)
class RunDirectory:
    path: Path

    @staticmethod
    def create(out: Path, experiment: Experiment, environment: Mapping[str, Any]) -> RunDirectory:
        """A fresh directory OUT/NAME/ID; the id is the time (UTC), the seed and a few digits of the experiment's hash."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        base = f"{stamp}-seed{experiment.seed}-{experiment.hash()[:6]}"
        with writing(out):
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
        if not (path / "experiment.toml").is_file():
            raise UserError(
                f"{path} is not a run's directory: it has no experiment.toml (runs/NAME/ID is one)"
            )
        return RunDirectory(path)

    def experiment(self) -> Experiment:
        return from_table(toml.read(self.path / "experiment.toml"))

    def environment(self) -> dict[str, Any]:
        found = self._json("environment.json")
        for section in ("versions", "data", "partition"):
            if not isinstance(found.setdefault(section, {}), dict):
                raise UserError(
                    f"{self.path / 'environment.json'}: {section} is not a table: restore it"
                )
        return found

    def stack(self) -> list[Path]:
        """The directories of the runs it is stacked with, its own among them."""
        environment = self.environment()
        if environment.get("engine") == "flower":
            raise UserError(
                f"{self.path} was run on Flower, and goes on there: `flwr run` with resume='{self.path}'"
            )
        stack = environment.get("stack")
        if not isinstance(stack, list) or not all(
            isinstance(other, str) and "\0" not in other for other in stack
        ):
            raise UserError(
                f"{self.path / 'environment.json'} does not say what the run is stacked with: restore it"
            )
        return [
            self.path if other == "." else (self.path.resolve() / other).resolve()
            for other in stack
        ]

    def result(self) -> dict[str, Any] | None:
        if (self.path / "result.json").is_file():
            return self._json("result.json")
        return None

    def rounds(self) -> list[RoundRecord]:
        """The rounds recorded, from the first on; a torn last line (the writer was killed) does not count."""
        return self._parsed(self._lines("rounds.jsonl"))

    def _parsed(self, lines: list[str]) -> list[RoundRecord]:
        names = {f.name for f in fields(RoundRecord)}
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line)
                records.append(RoundRecord(**{key: values[key] for key in names & set(values)}))
                if records[-1].round != number:
                    raise ValueError(f"it should be of round {number}")
            except (ValueError, TypeError, KeyError) as error:
                where = f"{self.path / 'rounds.jsonl'}, line {number}"
                raise UserError(
                    f"{where} is not that round's record ({error!r}): restore it, or start the run anew"
                ) from error
        return records

    def begin_audit(self, federation: Federation) -> None:
        """Begin the files of a committee."""
        self.write("federation.toml", federation.text)
        for name in AUDITED:
            self.write(name, "")

    def audited(self) -> bool:
        return (self.path / "federation.toml").is_file()

    def append(self, outcome: RoundOutcome) -> None:
        """The round's proofs first: no record is without them."""
        if outcome.report is not None:
            self.prove(outcome.report)
        table = io.StringIO()
        csv.DictWriter(table, CLIENT_COLUMNS, lineterminator="\n").writerows(outcome.clients)
        self._append("clients.csv", table.getvalue())
        self._append("rounds.jsonl", to_json(asdict(outcome.record)) + "\n")

    def prove(self, report: AgreementReport) -> None:
        """What proves a round."""
        with writing(self.path):
            hash_chain.append(self.path / "bodies.bin", report.run, report.bodies)
            hash_chain.append(self.path / "audit.log", report.run, report.entry)

    def rewind(self, number: int) -> None:
        """Forget the rounds after `number`: what was recorded since the checkpoint will be recorded again."""
        rounds = self._lines("rounds.jsonl")[:number]
        found = len(self._parsed(rounds))
        if found < number:
            raise UserError(
                f"{self.path} has records of {found} rounds but a checkpoint of round {number}: restore rounds.jsonl"
            )
        lines = self._lines("clients.csv")
        size = 1 + number * self.experiment().clients
        if lines[:1] != [",".join(CLIENT_COLUMNS)] or len(lines) < size:
            raise UserError(
                f"{self.path / 'clients.csv'} does not have {number} rounds of clients: restore it, or start anew"
            )
        if self.audited():
            self._rewind_proofs(number)
        self.write("rounds.jsonl", "".join(f"{line}\n" for line in rounds))
        self.write("clients.csv", "".join(f"{line}\n" for line in lines[:size]))

    def _rewind_proofs(self, number: int) -> None:
        federation = self.path / "federation.toml"
        root = Federation.read(federation.read_text(encoding="utf-8"), str(federation)).roster.run
        for name in AUDITED:
            if not (self.path / name).is_file():
                raise UserError(f"{self.path / name} is missing: restore it, or start the run anew")
            with writing(self.path):
                hash_chain.cut(self.path / name, root, number)

    def checkpoints(self) -> dict[int, Path]:
        """The checkpoints by round; other files there are not ours."""
        found = sorted((self.path / "checkpoints").glob("round-*.safetensors"))
        numbers = [(path.stem.removeprefix("round-"), path) for path in found]
        return {int(number): path for number, path in numbers if number.isdecimal()}

    def sync(self) -> None:
        """All records and proofs so far, on the disk."""
        for name in ("rounds.jsonl", "clients.csv", *(AUDITED if self.audited() else ())):
            with writing(self.path), (self.path / name).open("rb+") as file:
                os.fsync(file.fileno())

    def save(self, state: LoopState) -> Path:
        """A checkpoint; the records of its rounds reach the disk before it does."""
        self.sync()
        named = {
            f"cohort{i}/{name}": p
            for i, params in enumerate(state.params)
            for name, p in params.items()
        }
        named["globals/values"] = torch.from_numpy(state.globals_[0].values_JV)
        named["globals/present"] = torch.from_numpy(state.globals_[0].present_J)
        named |= {
            f"memory/{name}": torch.from_numpy(array) for name, array in state.memory[0].items()
        }
        named |= {f"centres/{name}": p for name, p in state.centres.items()}
        if state.agreed[0]:
            named["committee/last"] = torch.frombuffer(
                bytearray(state.agreed[0]), dtype=torch.uint8
            )
        path = self.path / "checkpoints" / f"round-{state.round:06d}.safetensors"
        tensors.save(
            path, named, {"round": str(state.round), "experiment": self.experiment().hash()}
        )
        return path

    def prune(self, keep: int) -> None:
        for number, path in self.checkpoints().items():
            if number != keep:
                path.unlink(missing_ok=True)

    def load(self, number: int, device: torch.device) -> LoopState:
        """The state after round `number`, checked to be of this experiment."""
        path = self.checkpoints()[number]
        named, metadata = tensors.load(path, max_bytes=path.stat().st_size)
        if metadata.get("experiment") != self.experiment().hash():
            raise UserError(
                f"{path} is a checkpoint of another experiment than experiment.toml beside it: restore either"
            )
        if not {"globals/present", "globals/values"} <= set(named):
            raise UserError(
                f"{path} has no global prototypes: it is not a checkpoint of this program; remove it and resume"
            )
        present = named.pop("globals/present").numpy()
        values = named.pop("globals/values").numpy()
        memory = {name: p.numpy() for name, p in _under(named, "memory").items()}
        centres = {name: p.to(device) for name, p in _under(named, "centres").items()}
        if "committee/last" in named:
            agreed = named["committee/last"].numpy().tobytes()
        else:
            agreed = b""
        params = tuple(
            {name: p.to(device) for name, p in _under(named, f"cohort{i}").items()}
            for i in range(len(self.experiment().models()))
        )
        globals_ = Globals(present.astype(np.bool_), values)
        return LoopState(int(metadata["round"]), params, (globals_,), (memory,), centres, (agreed,))

    def last(self, device: torch.device) -> LoopState:
        """The newest state there is a checkpoint of."""
        if not self.checkpoints():
            raise UserError(
                f"{self.path} has no checkpoint yet: `fedrfq resume {self.path}` continues the run"
            )
        return self.load(max(self.checkpoints()), device)

    def write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())

    def _append(self, name: str, text: str) -> None:
        with writing(self.path), (self.path / name).open("a", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()

    def _lines(self, name: str) -> list[str]:
        """The file's whole lines; a last one without its end was torn by a crash and is left out."""
        try:
            text = (self.path / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path / name} cannot be read: {error}") from error
        return text.split("\n")[:-1]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise UserError(f"{self.path / name} is not what this program writes: restore it")
        return value


def _under(named: Mapping[str, Tensor], folder: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the folder's, without it."""
    return {
        name.removeprefix(f"{folder}/"): tensor
        for name, tensor in named.items()
        if name.startswith(f"{folder}/")
    }


def common_round(runs: Sequence[RunDirectory]) -> int:
    """The newest round all runs have a checkpoint of; 0 if there is none."""
    return max(set.intersection(*(set(run.checkpoints()) for run in runs)), default=0)


def _fresh(parent: Path, base: str) -> Path:
    for attempt in range(1000):
        path = parent / (f"{base}-{attempt}" if attempt else base)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise UserError(f"{parent} has a thousand runs of this second: choose another --out")
