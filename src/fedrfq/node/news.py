"""What a client is told of a round."""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.prototypes.fixed_point import Globals


@dataclass(frozen=True)
class News:
    """A round's certified result; round 0 stands for what is known before the first.

    The verdict and what follows it are on this client's own upload: `weight` is what it has left,
    in percent, and `reason` says why that is less than all. `last` says that no round follows.
    `public` are the statistics on the public feature map, if there are any yet. `counted` is this
    client's own upload, if it was among those that the round was decided on.
    """

    round: int
    globals_: Globals
    verdict: str = ""
    score: int | None = None
    weight: float | None = None
    reason: str = ""
    last: bool = False
    public: Globals | None = None
    counted: bytes = b""
