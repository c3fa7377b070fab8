"""What becomes of messages on their way: late, lost, doubled, out of order, cut off; and from some time on, none of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from fedrfq.consensus.messages import Kind, Message, Part, PartKind

_ECHOES = 30
_ECHO_MS = 30


@dataclass(frozen=True, slots=True)
class Split:
    """From start to end, nothing passes between the parties of one side and all others."""

    start_ms: int
    end_ms: int
    side: frozenset[int]

    def cuts(self, now: int, origin: int, to: int) -> bool:
        return self.start_ms <= now < self.end_ms and (origin in self.side) != (to in self.side)


@dataclass(frozen=True, slots=True)
class Hole:
    """Messages of one kind and view, of one round or of all, reach only some servers, of some servers: no chance loss
    finds so precise a gap."""

    kind: Kind
    view: int
    speakers: frozenset[int]
    hearers: frozenset[int]
    round: int | None = None

    def swallows(self, origin: int, to: int, round_: int) -> bool:
        there = to >= 0 and (origin not in self.speakers or to not in self.hearers)
        return there and self.round in (None, round_)


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Before `calm_ms` anything below may happen; after it every message arrives once, within `slow_ms`."""

    quick_ms: int = 1
    slow_ms: int = 10
    calm_ms: int = 0
    loss: float = 0.0
    double: float = 0.0
    straggle: float = (
        0.0  # the share of messages that take up to twenty times as long, and so come out of order
    )
    splits: tuple[Split, ...] = ()
    holes: tuple[Hole, ...] = ()
    favoured: frozenset[int] = (
        frozenset()
    )  # whose messages pass: the faulty may have the network on their side
    echoes: bool = False  # whether answers to those who rejoin come again and again, long after they were given


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
        self.lost = self.doubled = self.cut = 0

    def delays(self, now: int, origin: int, to: int, message: Message) -> tuple[int, ...]:
        """When each copy of a message arrives, from now."""
        if now >= self.calm or origin in self.links.favoured:
            return (self.quick + int(self.random() * self.span),)
        links = self.links
        random = self.random
        if (self.holes or links.splits) and self._cut(now, origin, to, message):
            self.cut += 1
            return ()
        if links.echoes and type(message.body) is Part and message.body.what == PartKind.STANDING:
            return tuple(self.quick + again * _ECHO_MS for again in range(_ECHOES))
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

    def _cut(self, now: int, origin: int, to: int, message: Message) -> bool:
        for hole in self.holes.get((message.body.kind, message.view), ()):
            if hole.swallows(origin, to, message.body.round):
                return True
        splits = self.links.splits
        return bool(splits) and any(split.cuts(now, origin, to) for split in splits)


def _partitioned(servers: int) -> LinkFaults:
    return LinkFaults(5, 50, 6_000, splits=(Split(0, 5_000, frozenset(range((servers + 1) // 2))),))


NETWORKS: dict[str, Callable[[int], LinkFaults]] = {
    "calm": lambda servers: LinkFaults(),
    "lossy": lambda servers: LinkFaults(5, 50, 20_000, loss=0.1, double=0.05, straggle=0.1),
    "partitioned": _partitioned,
}
