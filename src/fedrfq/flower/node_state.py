"""A node's state on its own disk: the models of its clients, the last result it verified, and what it answered to it.

Each program's models are a file of their own, named by the round they were trained in; `kept.safetensors` says which of them
count, and is written last. So whatever ends a node, it goes on from a whole answer: what was signed is said again to the
byte, and never trained or signed anew.
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
from fedrfq.files.locks import locked
from fedrfq.flower.messages import MOST_BYTES, NAME, NodeAnswer
from fedrfq.models.stacked import Params
from fedrfq.node.storage.party_folder import make_folder

KEPT = "kept.safetensors"
_MORE_BYTES = 1 << 24  # of a file besides what it is for
_MODELS = re.compile(
    r"models-\d+-\d+\.safetensors|\.(kept|models-\d+-\d+)\.safetensors\.[0-9a-f]{16}\.tmp"
)


@dataclass(frozen=True)
class SavedState:
    """`round` is that of the last verified result, `last` the result as it came, `answer` what was answered to it. `models`
    says of each program in which round its models were trained (0: they are as they began), `cut` of each client how many
    values were cut in its upload of round `answer.round`."""

    round: int
    last: bytes
    models: tuple[int, ...]
    cut: tuple[int, ...]
    answer: NodeAnswer | None

    def nothing_cut(self) -> tuple[int, ...]:
        return (0,) * len(self.cut)


class NodeState:
    """The state of these clients, divided into these programs, in a run; in a folder that no other node uses."""

    def __init__(self, folder: Path, run: str, programs: Sequence[tuple[int, ...]]) -> None:
        self.folder = folder
        self.run = run
        self.programs = tuple(programs)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the folder."""
        make_folder(self.folder, 0o700)
        handle = locked(self.folder, "a node's folder", "a client is hosted by one node")
        try:
            yield
        finally:
            os.close(handle)

    def begin(self, clients: tuple[int, ...], before: bool) -> None:
        """Write down that nothing was signed yet, so that a lost state can be told from none; `before`: there was one."""
        with self.locked():
            nothing = self.read()
            if nothing.answer is None and before:
                raise UserError(
                    f"{self.folder} has lost what its clients signed: restore it, or they might sign two uploads of one round"
                )
            if nothing.answer is None:
                self.save(replace(nothing, answer=NodeAnswer(clients)))

    def read(self) -> SavedState:
        """Where the node stands; before the first round, if there is nothing."""
        path = self.folder / KEPT
        if not path.exists():
            return SavedState(
                0, b"", (0,) * len(self.programs), (0,) * sum(map(len, self.programs)), None
            )
        found, about = tensors.load(path, 4 * MOST_BYTES)
        try:
            facts = json.loads(about["facts"])
            whose = facts["run"], facts["programs"]
            kept = SavedState(
                facts["round"],
                _bytes(found["last"]),
                tuple(facts["models"]),
                tuple(facts["cut"]),
                _answer(found, facts),
            )
        except (KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(
                f"{path} is not as this program writes it: restore it, or remove {self.folder}"
            ) from error
        if whose != (self.run, [list(program) for program in self.programs]):
            raise UserError(
                f"{self.folder} has the models of another run, or of other clients: name another folder as state"
            )
        return kept

    def save(self, kept: SavedState) -> None:
        """From now on this is where the node stands."""
        assert kept.answer is not None
        answer = dict(kept.answer.record()[NAME])
        long = {f"answer.{key}": value for key, value in answer.items() if isinstance(value, bytes)}
        facts = {
            "run": self.run,
            "programs": self.programs,
            "round": kept.round,
            "models": kept.models,
            "cut": kept.cut,
            "answer": {key: value for key, value in answer.items() if not isinstance(value, bytes)},
        }
        content = {key: _tensor(value) for key, value in {"last": kept.last, **long}.items()}
        tensors.save(self.folder / KEPT, content, {"facts": json.dumps(facts)})
        self._clear(kept)

    def save_models(self, program: int, number: int, params: Params) -> None:
        """As trained in a round. They count once `save` says so."""
        tensors.save(self._models(program, number), params)

    def load_models(self, program: int, number: int, like: Params) -> Params:
        """`like` has the parameters that one client's model must have."""
        path = self._models(program, number)
        clients = len(self.programs[program])
        length = clients * sum(p.numel() * p.element_size() for p in like.values())
        found, _ = tensors.load(path, length + _MORE_BYTES)
        due = {name: ((clients, *p.shape[1:]), p.dtype) for name, p in like.items()}
        if {name: (tuple(p.shape), p.dtype) for name, p in found.items()} != due:
            raise UserError(f"{path} does not have the models of this experiment: restore it")
        return {name: found[name] for name in like}

    def _models(self, program: int, number: int) -> Path:
        return self.folder / f"models-{program}-{number}.safetensors"

    def _clear(self, kept: SavedState) -> None:
        """Models that no longer count, and what a crash left behind."""
        due = {self._models(program, number) for program, number in enumerate(kept.models)}
        for path in self.folder.iterdir():
            if _MODELS.fullmatch(path.name) and path not in due:
                path.unlink(missing_ok=True)


def _tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _answer(found: dict[str, Tensor], facts: dict[str, Any]) -> NodeAnswer:
    """As it was given: what is on a disk may be damaged, and is checked as if it came by post."""
    long = {
        key.removeprefix("answer."): _bytes(t)
        for key, t in found.items()
        if key.startswith("answer.")
    }
    return NodeAnswer.read(RecordDict({NAME: ConfigRecord({**facts["answer"], **long})}))
