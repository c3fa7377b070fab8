"""A round that was decided: on the disk before anybody is told of it. Its record waits for what the nodes find when they test
their models with it, so here is all that the record needs and that no one could ask for again."""

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
from fedrfq.flower.messages import Row

FILE = "decided.safetensors"
_COUNTS = ("view", "leader", "messages", "length", "evidence")
_BYTES = ("uploads", "last", "entry", "bodies", "run")

Table = NDArray[np.float64]


@dataclass(frozen=True)
class DecidedRound:
    """`uploads` are those that were sent, whatever became of them; `losses` are of all who trained."""

    round: int
    uploads: Mapping[int, Message]
    losses: Mapping[int, Row]
    last: bytes
    report: AgreementReport | None
    seconds_train: float
    seconds: float

    def save(self, folder: Path, figures: Table) -> None:
        """With the clients' figures as they are known so far."""
        report = self.report
        named = {
            "uploads": _bytes(pack(self.uploads.values())),
            "last": _bytes(self.last),
            "entry": _bytes(report.entry if report else b""),
            "bodies": _bytes(report.bodies if report else b""),
            "run": _bytes(report.run if report else b""),
            "trained": torch.tensor(list(self.losses), dtype=torch.int64),
            "losses": torch.tensor(list(self.losses.values()), dtype=torch.float64).view(-1, 3),
            "figures": torch.from_numpy(figures),
        }
        about = {"round": self.round, "seconds_train": self.seconds_train, "seconds": self.seconds}
        about |= {key: getattr(report, key) for key in _COUNTS} if report else {}
        tensors.save(folder / FILE, named, {key: str(value) for key, value in about.items()})

    @staticmethod
    def load(folder: Path) -> tuple[DecidedRound, Table] | None:
        """The round decided last; none before the first."""
        path = folder / FILE
        if not path.is_file():
            return None
        named, about = tensors.load(path, path.stat().st_size)
        try:
            return _read(named, about), named["figures"].numpy().astype(np.float64)
        except (KeyError, ValueError, TypeError, AssertionError, Refused) as error:
            raise UserError(
                f"{path} is not what this program writes ({error!r}): restore it, or start anew"
            ) from error


def _read(named: Mapping[str, Tensor], about: Mapping[str, str]) -> DecidedRound:
    uploads, last, entry, bodies, run = (named[key].numpy().tobytes() for key in _BYTES)
    report: dict[str, Any]
    if run:
        report = {key: int(about[key]) for key in _COUNTS}
    else:
        report = {}
    return DecidedRound(
        int(about["round"]),
        by_client([placed.message for placed in unpack(uploads)]),
        {
            int(k): (a, b, c)
            for k, (a, b, c) in zip(
                named["trained"].tolist(), named["losses"].tolist(), strict=True
            )
        },
        last,
        AgreementReport(run, **report, entry=entry, bodies=bodies) if run else None,
        float(about["seconds_train"]),
        float(about["seconds"]),
    )


def by_client(messages: list[Message]) -> dict[int, Message]:
    """Uploads by ascending client, the first of each; what is none is left out."""
    found: dict[int, Message] = {}
    for message in messages:
        if isinstance(message.body, Upload):
            found.setdefault(message.body.client, message)
    return dict(sorted(found.items()))


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
