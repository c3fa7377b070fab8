"""Clients' public classifiers on the disk: those of a run, or the one of a network client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.files import tensors
from fedrfq.learning.public.classifier import PublicClassifier

CLASSIFIERS = "public.safetensors"
# Runs of others are read, too: a larger file is refused.
_MAX_BYTES = 1 << 30
# The number of dimensions and the type of each tensor; the first dimension is the client.
_KINDS = {
    "weight": (3, torch.float32),
    "bias": (2, torch.float32),
    "temperature": (1, torch.float32),
    "held": (2, torch.bool),
}


def save_classifiers(folder: Path, made: Sequence[PublicClassifier], held_KJ: Tensor) -> None:
    """Write every client's classifier, and which classes each one holds."""
    named = {
        "weight": torch.stack([one.weight_VJ for one in made]).float(),
        "bias": torch.stack([one.bias_J for one in made]).float(),
        "temperature": torch.tensor([one.temperature for one in made]),
        "held": held_KJ,
    }
    named = {name: tensor.cpu().contiguous() for name, tensor in named.items()}
    tensors.save(folder / CLASSIFIERS, named, {})


def load_classifier(folder: Path, client: int) -> tuple[PublicClassifier, Tensor] | None:
    """Return a client's classifier and the classes it holds; None where there is none."""
    path = folder / CLASSIFIERS
    if not path.is_file():
        return None
    named, _ = tensors.load(path, _MAX_BYTES)
    if {name: (t.dim(), t.dtype) for name, t in named.items()} != _KINDS or not _fits(named):
        raise UserError(
            f"{path} does not have the classifiers of clients: restore it, or remove it"
        )
    if client >= len(named["held"]):
        raise UserError(f"{path} has no client {client}: restore it, or remove it")
    made = PublicClassifier(
        named["weight"][client].double(),
        named["bias"][client].double(),
        float(named["temperature"][client]),
    )
    return made, named["held"][client]


def _fits(named: dict[str, Tensor]) -> bool:
    """Return whether all tensors are of as many clients and classes, and all numbers usable."""
    clients, _, classes = named["weight"].shape
    shapes = [named[name].shape for name in ("bias", "temperature", "held")]
    if shapes != [(clients, classes), (clients,), (clients, classes)]:
        return False
    finite = all(bool(named[name].isfinite().all()) for name in ("weight", "bias", "temperature"))
    return finite and bool((named["temperature"] > 0).all())
