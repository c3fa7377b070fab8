"""kill -9 and restart of random parties, at moments that follow from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from fedrfq.node.ops.child_processes import Child


class Chaos:
    """Of servers at most `faults` are down at a time; a party counts as down until it is at work (`ready`).

    `down` says when those who were killed come back; `cycles` how often somebody was.
    """

    def __init__(
        self,
        children: Mapping[int, Child],
        faults: int,
        rng: Random,
        ready: Callable[[int], bool],
        pause_s: float = 3.0,
    ) -> None:
        self.children = children
        self.faults = faults
        self.rng = rng
        self.ready = ready
        self.pause_s = pause_s
        self.cycles = 0
        self.down: dict[int, float] = {}
        self._rising = set(children)
        self._next = 0.0

    def step(self, now: float) -> list[str]:
        """What was done, in words."""
        done = [self._restart(party) for party, at in list(self.down.items()) if now >= at]
        self._rising = {party for party in self._rising if not self.ready(party)}
        if now >= self._next:
            done += self._strike(now)
        return done

    def end(self) -> None:
        """Whoever is down comes back."""
        for party in list(self.down):
            self._restart(party)

    def _strike(self, now: float) -> list[str]:
        away = self._rising | set(self.down)
        full = sum(party >= 0 for party in away) >= self.faults
        open_ = [
            p
            for p, child in self.children.items()
            if p not in away and child.running and not (p >= 0 and full)
        ]
        if not open_:
            return []
        party = self.rng.choice(open_)
        self.children[party].kill()
        self.down[party] = now + self.rng.uniform(0, self.pause_s)
        self._next = now + self.rng.uniform(0, 2 * self.pause_s)
        self.cycles += 1
        return [f"killed {self.children[party].name}"]

    def _restart(self, party: int) -> str:
        del self.down[party]
        self._rising.add(party)
        self.children[party].start()
        return f"restarted {self.children[party].name}"
