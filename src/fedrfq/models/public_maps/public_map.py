"""The interface of a public feature map, and what clients exchange about it.

A public map turns images into vectors. It is frozen, and everybody has the same one, so that a
class's mean on it means the same everywhere: a client learns from others' means what classes look
like that it has never seen. A map depends on nobody's samples: it is drawn from a seed, or it is a
set of published weights, known by their hash.

Every sample's vector is scaled to the same norm C. One sample can therefore move a sum by no more
than C, and a mean that is longer than C is a lie.

A map's values may be mostly positive; then most of a vector's length is the same for all images,
and tells nothing. A centred map subtracts from each vector the mean of its values first. Noise in
proportion to C then hides a sample just as well, and the classes less.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.files.options import check_ranges, one_of, option
from fedrfq.prototypes.exchange_rounds import exchange_due

CLASSIFIERS = ("lda", "nearest")
MOMENTS = ("none", "full")
# Covariances are small numbers: on a coarser grid most of them would be 0.
MIN_MOMENT_BITS = 12
# float32 holds the square of a vector's norm.
_MAX_NORM = 8.0
_ALMOST_0 = 1e-12
_LEAVE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True)
class PublicMap(ABC):
    """A public map by its settings; fields are the options of an experiment's public section."""

    bits: int = option(8, "Bits of each exchanged value", "4 to 24; 12 or more with moments")
    norm: float = option(
        1.0,
        "Norm that every sample's vector is scaled to, divided by the root of its length",
        f"above 0, at most {_MAX_NORM:g}",
    )
    projection: int = option(
        0,
        "Values that the vectors are projected to, at random; 0 keeps all",
        "0 to the map's values",
    )
    centred: bool = option(
        False, "Subtract from each vector the mean of its values, before it is projected and scaled"
    )
    moments: str = option(
        "none",
        "Second moments to exchange besides the means: none, or the whole covariance",
        one_of(MOMENTS),
    )
    classifier: str = option(
        "lda",
        "How classes are told apart on the map: by LDA, or by the nearest mean",
        one_of(CLASSIFIERS),
    )
    shrinkage: float = option(
        0.0,
        "How far LDA's covariance is shrunk to a multiple of the identity; 0 chooses by its source",
        "0 to 1",
    )
    threshold: float = option(
        0.0,
        "Probability below which the combined prediction is that it does not know",
        "0 to below 1",
    )
    every: int = option(
        0, "Rounds after which clients send their statistics again; 0 for once", "0 or more"
    )
    revocable: bool = option(
        False, "Whether clients can take their statistics back; servers keep everybody's latest"
    )
    leave: str = option(
        "",
        "Clients of a simulated run that leave and are forgotten, and in which round",
        "ROUND:CLIENT, several with spaces between them",
    )

    # Who made the map and under which terms; operators read this before they agree on a map.
    source: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    # Whether a pass over the images takes so long that its result is kept on the disk.
    slow: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ranges("public", self)
        if self.projection > self.width():
            raise UserError(
                f"public.projection must be 0, or at most the {self.width()} values of the map, "
                f"not {self.projection}"
            )
        if self.moments != "none" and self.bits < MIN_MOMENT_BITS:
            raise UserError(
                f"public.moments = '{self.moments}' needs public.bits of {MIN_MOMENT_BITS} or "
                f"more, not {self.bits}: covariances are too small for a coarser grid"
            )
        if self.leaving() and not self.revocable:
            raise UserError(
                f"public.leave = '{self.leave}', but statistics cannot be taken back: "
                "set public.revocable = true"
            )

    @property
    def used(self) -> bool:
        """Whether there is a map at all."""
        return True

    def due(self, round_: int) -> bool:
        """Return whether clients send statistics on the map in this round."""
        return self.used and exchange_due(round_, self.every)

    def leaving(self) -> dict[int, int]:
        """Return the round in which each client leaves, for those that do."""
        leaving: dict[int, int] = {}
        for pair in self.leave.split():
            found = _LEAVE.fullmatch(pair)
            if not found or int(found[1]) < 2 or int(found[2]) in leaving:
                raise UserError(
                    f"public.leave has '{pair}': expected ROUND:CLIENT, as 5:3, with a round after "
                    "the first and each client once"
                )
            leaving[int(found[2])] = int(found[1])
        return leaving

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the hash that names the map itself, before any projection."""

    @abstractmethod
    def width(self) -> int:
        """Return the length of an unprojected vector, whatever the size of an image."""

    @abstractmethod
    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        """Return the unprojected vectors of images, whose values are 0 to 255.

        It can be differentiated by the images: who has a map can look for images of a vector.
        """

    def identity(self) -> str:
        """Return the name by which members of a federation know that they use the same map."""
        name = self.fingerprint()
        if self.centred:
            name += ".centred"
        if self.projection:
            name += f".{self.projection}"
        return name

    def values(self) -> int:
        """Return V, the number of values of a vector as it is exchanged."""
        return self.projection or self.width()

    def limit(self) -> float:
        """Return C, the norm of every sample's vector."""
        return float(self.norm * self.values() ** 0.5)

    def scaled(self, raw_NW: Tensor) -> Tensor:
        """Return vectors as they are exchanged: centred, projected, and of the norm C.

        An image that the map sees nothing in keeps the vector 0.
        """
        vectors = raw_NW
        if self.centred:
            vectors = vectors - vectors.mean(1, keepdim=True)
        if self.projection:
            vectors = vectors @ self._projection(raw_NW.shape[1])
        length_N1 = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        limit = self.norm * vectors.shape[1] ** 0.5
        scaled_NV: Tensor = vectors * (limit / length_N1.clamp_min(_ALMOST_0))
        return scaled_NV

    def _projection(self, width: int) -> Tensor:
        """Return a matrix of random signs, which hardly changes the angles between vectors."""
        name = f"{self.fingerprint()} projection {self.projection}"
        signs_WV = drawn(name, (width, self.projection)) >= 0
        return torch.from_numpy(np.where(signs_WV, np.float32(1), np.float32(-1)))


def drawn(name: str, shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Draw numbers from −128 to 127 by a name: the same on every machine, for ever."""
    # From a hash function, as a library's random numbers may change with its version.
    data = hashlib.shake_256(name.encode()).digest(int(np.prod(shape)))
    return np.frombuffer(data, np.int8).reshape(shape)
