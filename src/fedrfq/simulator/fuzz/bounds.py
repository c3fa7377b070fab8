"""How long a schedule may take once the network is calm, and how much a server may hold."""

from __future__ import annotations

from fedrfq.consensus.roster import Roster
from fedrfq.simulator.fuzz.schedule import Schedule

_SPARE_VIEWS = 3  # more than faulty leaders and short views account for
_DELAYS = (
    8  # that fetching, proposing, both votes and their stragglers may take one after the other
)


def most_views(roster: Roster, slow_ms: int) -> int:
    """Of a round, after those gone through before: f faulty leaders', and those too short for messages so slow."""
    short = sum(roster.timeout_ms(view) < _DELAYS * slow_ms for view in range(6))
    return roster.f + short + _SPARE_VIEWS


def most_ms(schedule: Schedule, roster: Roster) -> int:
    """All these views in all rounds, after what was lost before has been said again."""
    links = schedule.links
    views = sum(map(roster.timeout_ms, range(most_views(roster, links.slow_ms) + 4)))
    round_ms = 3 * roster.deadline_ms + schedule.training_ms + views + 20 * links.slow_ms
    return links.calm_ms + 40 * roster.resend_ms + schedule.rounds * round_ms


def most_messages(n: int, clients: int) -> int:
    """A replica's bound: slots of this round and the next, the lists and view changes of each proposal, the uploads and
    change proposals that lists may name, and the evidence of two rounds."""
    return 4 * n * n + 10 * n + 2 * (clients + n) * (n + 2)
