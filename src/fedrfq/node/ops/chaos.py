"""Kill -9 and restart random parties of a local cluster, at moments that follow from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from fedrfq.node.ops.child_processes import Child


class Chaos:
    """Kills and restarts parties; at most `faults` servers are away at a time.

    A party is away from when it is killed until it is at work again, which `ready` tells. `down`
    has the parties that are killed, with the time of their restart, and `cycles` counts the kills.
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
        # Nobody is at work yet when the cluster has just been started.
        self._starting = set(children)
        self._next_strike = 0.0

    def step(self, now: float) -> list[str]:
        """Restart and kill whoever is due at the time `now`; return what was done, in words."""
        due = [party for party, restart_at in self.down.items() if now >= restart_at]
        done = [self._restart(party) for party in due]
        self._starting = {party for party in self._starting if not self.ready(party)}
        if now >= self._next_strike:
            done += self._strike(now)
        return done

    def end(self) -> None:
        """Restart everybody who is down."""
        for party in list(self.down):
            self._restart(party)

    def _strike(self, now: float) -> list[str]:
        """Kill a random party that may be killed, if there is one."""
        away = self._starting | set(self.down)
        # One more server away than `faults`, and the others could not decide a round.
        spares_servers = sum(party >= 0 for party in away) >= self.faults
        candidates = []
        for party, child in self.children.items():
            is_spared = party >= 0 and spares_servers
            if party not in away and child.running and not is_spared:
                candidates.append(party)
        if not candidates:
            return []
        party = self.rng.choice(candidates)
        self.children[party].kill()
        self.down[party] = now + self.rng.uniform(0, self.pause_s)
        self._next_strike = now + self.rng.uniform(0, 2 * self.pause_s)
        self.cycles += 1
        return [f"killed {self.children[party].name}"]

    def _restart(self, party: int) -> str:
        del self.down[party]
        self._starting.add(party)
        self.children[party].start()
        return f"restarted {self.children[party].name}"
