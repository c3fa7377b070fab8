"""Bounds for the invariants: how long a schedule may take, and how much a server may hold."""

from __future__ import annotations

from fedrfq.consensus.roster import Roster, faults
from fedrfq.simulator.fuzz.schedule import Schedule

_SPARE_VIEWS = 3  # more than faulty leaders and short views account for
# Message delays in a row: fetching, proposing, both votes, and stragglers among them.
_DELAYS = 8


def max_views(roster: Roster, slow_ms: int) -> int:
    """Return how many views a round may need once the network is calm.

    The f faulty leaders take one each, and so does each view too short for messages this slow.
    """
    short = sum(roster.timeout_ms(view) < _DELAYS * slow_ms for view in range(6))
    return roster.f + short + _SPARE_VIEWS


def max_ms(schedule: Schedule, roster: Roster) -> int:
    """Return how long a schedule may take: all these views in every round, and resending before."""
    links = schedule.links
    views = range(max_views(roster, links.slow_ms) + 4)
    views_ms = sum(map(roster.timeout_ms, views))
    round_ms = 3 * roster.deadline_ms + schedule.training_ms + views_ms + 20 * links.slow_ms
    return links.calm_ms + 40 * roster.resend_ms + schedule.rounds * round_ms


def max_messages(n: int, clients: int) -> int:
    """Return how many messages a replica may hold.

    These are its slots of this round and the next, the lists and view changes in each proposal, the
    uploads and change proposals that lists may name, and the proofs against faulty parties: three
    messages each, and what two proposals carry.
    """
    proofs = 3 * clients + faults(n) * (3 * 7 + 4 * n)
    return 4 * n * n + 10 * n + 2 * (clients + n) * (n + 2) + proofs
