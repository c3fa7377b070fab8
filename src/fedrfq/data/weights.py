"""Weights trained on ImageNet, fetched once and kept as safetensors.

Torch is imported only when they are read, so that listing them is quick.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.data import resnet18
from fedrfq.data.cache import folder, tell_cached
from fedrfq.data.origins import Origin, first
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """A model's weights: where to get them, and the hash of the tensors from any of the places."""

    name: str
    description: str
    places: tuple[Origin[dict[str, Tensor]], ...]
    sha256: str


def sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return the hash of the tensors sorted by name.

    Each adds a line "name dtype shape" and then its bytes in C order.
    """
    digest = hashlib.sha256()
    # Pinned by SHA256 of the known weights: this format must never change.
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {'x'.join(map(str, tensor.shape))}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


WEIGHTS: dict[str, Weights] = {
    "resnet18": Weights(
        name="resnet18",
        description="weights of ResNet18 trained on ImageNet (torchvision's)",
        places=resnet18.PLACES,
        sha256=resnet18.SHA256,
    )
}


def path(name: str) -> Path:
    """Return where the weights are stored, or would be."""
    return folder() / f"{name}-imagenet.safetensors"


def info(name: str) -> dict[str, object]:
    """Return what is known about the weights."""
    weights = _known(name)
    file = path(name)
    size = file.stat().st_size if file.is_file() else None
    return {
        "name": name,
        "cached": size is not None,
        "path": str(file),
        "bytes": size,
        "sha256": weights.sha256,
    }


def get_weights(name: str, progress: bool = True) -> Path:
    """Fetch the weights, check them, store them and return their path.

    A valid copy in the cache is kept, and a line says so.
    """
    from fedrfq.files import tensors

    weights = _known(name)
    if _is_cached(name):
        tell_cached(name, path(name), progress)
        return path(name)
    state, origin = _from_places(weights, progress)
    tensors.save(path(name), state, {"source": origin, "sha256": weights.sha256})
    return path(name)


def _from_places(weights: Weights, progress: bool) -> tuple[dict[str, Tensor], str]:
    def check(state: dict[str, Tensor]) -> None:
        _check(state, weights, weights.name)

    hint = f"Copy {path(weights.name).name} into {folder()}"
    try:
        return first(weights.places, check, hint, progress)
    except UserError as error:
        raise UserError(f"{weights.name}: {error}") from error


def load_weights(name: str) -> dict[str, Tensor]:
    """Return the stored weights, checked against their hash."""
    from fedrfq.files import tensors

    weights = _known(name)
    if not path(name).is_file():
        raise UserError(
            f"the weights {name} are not in the cache: expected {path(name)}, found none; "
            f"run: fedrfq data get {name}"
        )
    state, _ = tensors.load(path(name), links=True)
    _check(state, weights, str(path(name)))
    return state


def _known(name: str) -> Weights:
    if name not in WEIGHTS:
        raise UserError(
            f"weights: expected one of {', '.join(WEIGHTS)}, found {name!r}; name one of these"
        )
    return WEIGHTS[name]


def _is_cached(name: str) -> bool:
    try:
        load_weights(name)
    except UserError:
        return False
    return True


def _check(state: dict[str, Tensor], weights: Weights, what: str) -> None:
    found = sha256(state)
    if found != weights.sha256:
        raise UserError(
            f"{what}: expected tensors of sha256 {weights.sha256}, found {found}; "
            f"run: fedrfq data get {weights.name}"
        )
