"""The simulated network: messages are late, lost, doubled or cut off, until the network is calm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from fedrfq.consensus.messages import Kind, Message, Part, PartKind

# Copies of an echoed answer, and the time between two of them.
_ECHOES = 30
_ECHO_MS = 30


@dataclass(frozen=True, slots=True)
class Split:
    """A partition: from start to end nothing passes between the parties of `side` and others."""

    start_ms: int
    end_ms: int
    side: frozenset[int]

    def cuts(self, now: int, origin: int, to: int) -> bool:
        """Return whether a message sent now between these two parties is lost."""
        return self.start_ms <= now < self.end_ms and (origin in self.side) != (to in self.side)


@dataclass(frozen=True, slots=True)
class Hole:
    """Servers receive messages of one kind and view only from `speakers`, and only if in `hearers`.

    It applies to one round or, without one, to all. Random loss hardly ever hits so precise a gap.
    """

    kind: Kind
    view: int
    speakers: frozenset[int]
    hearers: frozenset[int]
    round: int | None = None

    def swallows(self, origin: int, to: int, round_: int) -> bool:
        """Return whether a message of this kind and view is lost on its way to a server."""
        passes = to < 0 or (origin in self.speakers and to in self.hearers)
        return not passes and self.round in (None, round_)


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """What may happen to messages before `calm_ms`.

    After `calm_ms` every message arrives exactly once, after `quick_ms` to `slow_ms`.
    """

    quick_ms: int = 1
    slow_ms: int = 10
    calm_ms: int = 0
    loss: float = 0.0
    double: float = 0.0
    # The share of messages that take up to twenty times as long, and so arrive out of order.
    straggle: float = 0.0
    splits: tuple[Split, ...] = ()
    holes: tuple[Hole, ...] = ()
    # Parties whose messages always pass: the faulty may have the network on their side.
    favoured: frozenset[int] = frozenset()
    # Whether answers to a server that rejoins arrive again and again, long after they were given.
    echoes: bool = False


class Network:
    """Draws the fate of each message; `lost`, `doubled` and `cut` count what happened."""

    def __init__(self, links: LinkFaults, rng: Random) -> None:
        self.links = links
        self.random = rng.random
        self.quick = links.quick_ms
        self.span = links.slow_ms - links.quick_ms + 1
        self.calm = links.calm_ms
        self.holes: dict[tuple[Kind, int], list[Hole]] = {}
        for hole in links.holes:
            self.holes.setdefault((hole.kind, hole.view), []).append(hole)
        self.lost = 0
        self.doubled = 0
        self.cut = 0

    def delays(self, now: int, origin: int, to: int, message: Message) -> tuple[int, ...]:
        """Return after how many milliseconds each copy of a message arrives; none if it is lost.

        The order of the random draws is part of every recorded schedule: do not change it.
        """
        if now >= self.calm or origin in self.links.favoured:
            return (self.quick + int(self.random() * self.span),)
        links = self.links
        random = self.random
        # What is cut off draws nothing, so holes and splits do not depend on chance.
        if (self.holes or links.splits) and self._is_cut(now, origin, to, message):
            self.cut += 1
            return ()
        if links.echoes and type(message.body) is Part and message.body.what == PartKind.STANDING:
            return tuple(self.quick + echo * _ECHO_MS for echo in range(_ECHOES))
        if random() < links.loss:
            self.lost += 1
            return ()
        delay = self.quick + int(random() * self.span)
        if random() < links.straggle:
            delay = int(delay * (1 + 19 * random()))
        if random() < links.double:
            self.doubled += 1
            return delay, delay + int(random() * 4 * self.span)
        return (delay,)

    def _is_cut(self, now: int, origin: int, to: int, message: Message) -> bool:
        for hole in self.holes.get((message.body.kind, message.view), ()):
            if hole.swallows(origin, to, message.body.round):
                return True
        return any(split.cuts(now, origin, to) for split in self.links.splits)


def _partitioned(servers: int) -> LinkFaults:
    one_half = frozenset(range((servers + 1) // 2))
    return LinkFaults(5, 50, 6_000, splits=(Split(0, 5_000, one_half),))


# The networks that a run's simulated committee can name; each is a function of the server count.
NETWORKS: dict[str, Callable[[int], LinkFaults]] = {
    "calm": lambda servers: LinkFaults(),
    "lossy": lambda servers: LinkFaults(5, 50, 20_000, loss=0.1, double=0.05, straggle=0.1),
    "partitioned": _partitioned,
}
