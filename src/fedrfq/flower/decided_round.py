"""A decided round, which is on disk before anybody is told of it.

Its record has to wait until the nodes have tested their models with the result. So the file holds
everything that the record needs and that nobody could be asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.committee import AgreementReport
from fedrfq.consensus.messages import Message, Upload
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import tensors
from fedrfq.flower.messages import Losses

FILE = "decided.safetensors"
# The fields of an AgreementReport that are numbers.
_COUNTS = ("view", "leader", "messages", "length", "evidence")

Table = NDArray[np.float64]


@dataclass(frozen=True)
class DecidedRound:
    """A round with all uploads that were sent, refused ones too, and the losses of all who trained.

    `last` is what the committee continues from.
    """

    round: int
    uploads: Mapping[int, Message]
    losses: Mapping[int, Losses]
    last: bytes
    report: AgreementReport | None
    seconds_train: float
    seconds: float

    def save(self, folder: Path, figures: Table) -> None:
        """Write the round, with the clients' figures as they are known so far."""
        about = {"round": self.round, "seconds_train": self.seconds_train, "seconds": self.seconds}
        proofs = {"entry": b"", "bodies": b"", "run": b""}
        if self.report:
            about |= {key: getattr(self.report, key) for key in _COUNTS}
            proofs = {key: getattr(self.report, key) for key in proofs}
        losses = list(self.losses.values())
        named = {
            "uploads": _tensor(pack(self.uploads.values())),
            "last": _tensor(self.last),
            **{key: _tensor(content) for key, content in proofs.items()},
            "trained": torch.tensor(list(self.losses), dtype=torch.int64),
            "losses": torch.tensor(losses, dtype=torch.float64).view(-1, 3),
            "figures": torch.from_numpy(figures),
        }
        tensors.save(folder / FILE, named, {key: str(value) for key, value in about.items()})

    @staticmethod
    def load(folder: Path) -> tuple[DecidedRound, Table] | None:
        """Return the last decided round and the figures saved with it; None before the first."""
        path = folder / FILE
        if not path.is_file():
            return None
        named, about = tensors.load(path, path.stat().st_size)
        try:
            return _read(named, about), named["figures"].numpy().astype(np.float64)
        except (KeyError, ValueError, TypeError, AssertionError, Refused) as error:
            raise UserError(
                f"{path} is damaged ({error!r}): restore it, or leave `resume` empty to start anew"
            ) from error


def _read(named: Mapping[str, Tensor], about: Mapping[str, str]) -> DecidedRound:
    trained = [int(client) for client in named["trained"].tolist()]
    rows = [(total, classes, prototype) for total, classes, prototype in named["losses"].tolist()]
    uploads = [placed.message for placed in unpack(_bytes(named["uploads"]))]
    run = _bytes(named["run"])
    report = None
    # Without an exchange there is no run id, and nothing was agreed on.
    if run:
        counts: dict[str, Any] = {key: int(about[key]) for key in _COUNTS}
        entry = _bytes(named["entry"])
        report = AgreementReport(run, **counts, entry=entry, bodies=_bytes(named["bodies"]))
    return DecidedRound(
        round=int(about["round"]),
        uploads=by_client(uploads),
        losses=dict(zip(trained, rows, strict=True)),
        last=_bytes(named["last"]),
        report=report,
        seconds_train=float(about["seconds_train"]),
        seconds=float(about["seconds"]),
    )


def by_client(messages: list[Message]) -> dict[int, Message]:
    """Return the first upload of each client, by ascending client; other messages are left out."""
    uploads: dict[int, Message] = {}
    for message in messages:
        if isinstance(message.body, Upload):
            uploads.setdefault(message.body.client, message)
    return dict(sorted(uploads.items()))


def _tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()
