"""The invariant `handed-on`: who was away learns of the evidence that it has missed.

A server that comes back, or catches up, asks the others. Once the network is calm, its questions
and their answers arrive, so in the end it knows every offence that all other honest servers knew
when it asked. A server that has crashed since then need not have answered.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.evidence import Offence
from fedrfq.simulator.violation import Violation

_Known = dict[int, frozenset[Offence]]  # by server


class EvidenceHistory:
    """Which offences each honest server has made durable, and which it ought to know."""

    def __init__(self, servers: Iterable[int]) -> None:
        self._known: dict[int, set[Offence]] = {server: set() for server in servers}
        self._away: set[int] = set()
        # By server, for each time that it was to ask: what the others knew then.
        self._known_to_others: dict[int, list[_Known]] = {server: [] for server in self._known}

    def learn(self, server: int, offence: Offence) -> None:
        """Note that a server has made a proof durable."""
        self._known[server].add(offence)

    def forget(self, server: int) -> None:
        """Note that a server has lost its log."""
        self._known[server] = set()

    def leave(self, server: int) -> None:
        """Note that a server has crashed: it hears no answers, and it gives none."""
        self._away.add(server)
        self._known_to_others[server] = []
        for times in self._known_to_others.values():
            for known in times:
                known.pop(server, None)

    def come_back(self, server: int) -> bool:
        """Note that a server has started; return whether it was away."""
        was_away = server in self._away
        self._away.discard(server)
        return was_away

    def ask(self, server: int) -> None:
        """Note that a server ought to ask the others now."""
        others = self._known.keys() - self._away - {server}
        self._known_to_others[server].append({s: frozenset(self._known[s]) for s in others})

    def missed(self) -> dict[int, set[Offence]]:
        """Return, by server, what it ought to know by now and does not."""
        ought = {
            server: {offence for known in times for offence in _common(known)}
            for server, times in self._known_to_others.items()
        }
        return {s: left for s, known in ought.items() if (left := known - self._known[s])}

    def finish(self) -> None:
        """Check that nobody has missed anything, after time enough for all answers."""
        for server, offences in self.missed().items():
            raise Violation(
                "handed-on", f"{server} does not know what all others do: {sorted(offences)}"
            )


def _common(known: _Known) -> frozenset[Offence]:
    """Return what all of these servers know."""
    return frozenset.intersection(*known.values()) if known else frozenset()
