"""A node's state on its own disk: its clients' models, the last verified result, and its answer.

Each program's models are a file of their own, named by the round in which they were trained.
`kept.safetensors` says which of these files count, and is written last. So however a node ends, it
continues from a complete answer: it repeats what it signed to the byte, and never trains or signs
the same round anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.files import tensors
from fedrfq.files.locks import acquire
from fedrfq.flower.messages import MAX_BYTES, NAME, NodeAnswer
from fedrfq.models.stacked import Params
from fedrfq.node.storage.party_folder import make_folder

KEPT = "kept.safetensors"
# Bytes of a file of models besides the models.
_MAX_HEADER = 1 << 24
# Models, and what a crash leaves of a file that was being written.
_DISPOSABLE = re.compile(
    r"models-\d+-\d+\.safetensors|\.(kept|models-\d+-\d+)\.safetensors\.[0-9a-f]{16}\.tmp"
)


@dataclass(frozen=True)
class SavedState:
    """The state of a node after it has answered an order.

    `round` and `last` are the last verified result, as it came, and `answer` is what the node
    answered to it. `public` is the result's public part, which may have come with an earlier one.
    `models` gives for each program the round in which its models were trained (0: not yet),
    `clipped` for each client how many values were clipped in its upload of round `answer.round`.
    """

    round: int
    last: bytes
    public: bytes
    models: tuple[int, ...]
    clipped: tuple[int, ...]
    answer: NodeAnswer | None

    def nothing_clipped(self) -> tuple[int, ...]:
        """Return a zero for each client."""
        return (0,) * len(self.clipped)


class NodeState:
    """The state of a run's clients, divided into programs, in a folder that no other node uses."""

    def __init__(self, folder: Path, run: str, programs: Sequence[tuple[int, ...]]) -> None:
        self.folder = folder
        self.run = run
        self.programs = tuple(programs)

    @staticmethod
    def found(folder: Path, run: str) -> NodeState | None:
        """Return the state in a folder, with the programs it says it has; None of another run."""
        path = folder / KEPT
        _, about = tensors.load(path, 4 * MAX_BYTES)
        try:
            facts = json.loads(about["facts"])
            programs = [tuple(program) for program in facts["programs"]]
            if facts["run"] != run:
                return None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not as this program writes it: restore it") from error
        return NodeState(folder, run, programs)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; raise a UserError if another process holds it."""
        make_folder(self.folder, 0o700)
        handle = acquire(self.folder, "a node's folder", "a client is hosted by one node")
        try:
            yield
        finally:
            os.close(handle)

    def begin(self, clients: tuple[int, ...], hosted_before: bool) -> None:
        """Write an empty state, so that later a lost state can be told from none.

        Raise a UserError if the clients were hosted here before and the state is gone.
        """
        with self.locked():
            saved = self.read()
            if saved.answer is not None:
                return
            if hosted_before:
                raise UserError(
                    f"{self.folder} has lost what its clients signed: restore it, since otherwise "
                    "they might sign two uploads of one round"
                )
            self.save(replace(saved, answer=NodeAnswer(clients)))

    def read(self) -> SavedState:
        """Return the saved state, or that before the first round if there is none."""
        path = self.folder / KEPT
        if not path.exists():
            clients = sum(map(len, self.programs))
            return SavedState(0, b"", b"", (0,) * len(self.programs), (0,) * clients, None)
        named, about = tensors.load(path, 4 * MAX_BYTES)
        try:
            facts = json.loads(about["facts"])
            owner = facts["run"], facts["programs"]
            saved = SavedState(
                round=facts["round"],
                last=_bytes(named["last"]),
                public=_bytes(named["public"]),
                models=tuple(facts["models"]),
                clipped=tuple(facts["cut"]),
                answer=_answer(named, facts),
            )
        except (KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(
                f"{path} is not as this program writes it: restore it, or remove {self.folder}"
            ) from error
        if owner != (self.run, [list(program) for program in self.programs]):
            raise UserError(
                f"{self.folder} holds the models of another run, or of other clients: "
                "name another folder as state"
            )
        return saved

    def save(self, saved: SavedState) -> None:
        """Make this the node's state, and remove the models that no longer count."""
        assert saved.answer is not None
        fields = dict(saved.answer.record()[NAME])
        # Bytes go into tensors, which are checked for their length; the rest goes into JSON.
        long = {key: value for key, value in fields.items() if isinstance(value, bytes)}
        facts = {
            "run": self.run,
            "programs": self.programs,
            "round": saved.round,
            "models": saved.models,
            "cut": saved.clipped,
            "answer": {key: value for key, value in fields.items() if key not in long},
        }
        named = {"last": _tensor(saved.last), "public": _tensor(saved.public)}
        named |= {f"answer.{key}": _tensor(value) for key, value in long.items()}
        tensors.save(self.folder / KEPT, named, {"facts": json.dumps(facts)})
        self._clear(saved)

    def save_models(self, program: int, number: int, params: Params) -> None:
        """Write a program's models as trained in round `number`; they count once `save` says so."""
        tensors.save(self._models_path(program, number), params)

    def load_models(self, program: int, number: int, like: Params) -> Params:
        """Return a program's models; `like` has the parameters of one client's model."""
        path = self._models_path(program, number)
        clients = len(self.programs[program])
        size = clients * sum(p.numel() * p.element_size() for p in like.values())
        named, _ = tensors.load(path, size + _MAX_HEADER)
        expected = {name: ((clients, *p.shape[1:]), p.dtype) for name, p in like.items()}
        if {name: (tuple(p.shape), p.dtype) for name, p in named.items()} != expected:
            raise UserError(f"{path} does not have the models of this experiment: restore it")
        return {name: named[name] for name in like}

    def _models_path(self, program: int, number: int) -> Path:
        return self.folder / f"models-{program}-{number}.safetensors"

    def _clear(self, saved: SavedState) -> None:
        """Remove models that no longer count, and what a crash left behind."""
        current = {
            self._models_path(program, number) for program, number in enumerate(saved.models)
        }
        for path in self.folder.iterdir():
            if _DISPOSABLE.fullmatch(path.name) and path not in current:
                path.unlink(missing_ok=True)


def _tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _answer(named: dict[str, Tensor], facts: dict[str, Any]) -> NodeAnswer:
    """Return the answer, checked as if it were received: a file may be damaged."""
    long = {
        key.removeprefix("answer."): _bytes(tensor)
        for key, tensor in named.items()
        if key.startswith("answer.")
    }
    return NodeAnswer.read(RecordDict({NAME: ConfigRecord({**facts["answer"], **long})}))
