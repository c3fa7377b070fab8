"""Which schedules can expose a mutant: conditions that a schedule must meet to be worth running.

They choose among the schedules that ordinary campaigns draw, and make no new ones: what exposes a
mutant is something that the true replica must pass, and passes, in every campaign.
"""

from __future__ import annotations

from collections.abc import Callable

from fedrfq.consensus.messages import Kind
from fedrfq.simulator.fuzz.schedule import Schedule

Condition = Callable[[Schedule], bool]


def with_servers(*behaviours: str) -> Condition:
    """Return the condition that a faulty server behaves in one of these ways."""
    return lambda schedule: any(name in behaviours for _, name in schedule.behaviours)


def without_faulty_servers(schedule: Schedule) -> bool:
    """Return whether all servers are honest."""
    return not schedule.behaviours


def with_crashes(*kinds: Kind) -> Condition:
    """Return the condition that a server crashes as it stores a message of one of these kinds."""
    return lambda schedule: any(crash.kind in kinds for crash in schedule.crashes)


def with_change_proposals(schedule: Schedule) -> bool:
    """Return whether all servers make a change proposal in every round."""
    return schedule.change_proposals == 1


def decided_alone(schedule: Schedule) -> bool:
    """Return whether one server decides a round and the others hear nothing of it."""
    holes = schedule.links.holes
    lone_hearers = [hole for hole in holes if hole.kind == Kind.COMMIT and len(hole.hearers) == 1]
    return len(lone_hearers) == 1


def prepared_in_secret(schedule: Schedule) -> bool:
    """Return whether only the faulty can prove what is prepared in the very first view."""
    faulty = {server for server, _ in schedule.behaviours}
    return any(
        hole.kind == Kind.PREPARE and hole.view == 0 and faulty.issuperset(_servers(hole.hearers))
        for hole in schedule.links.holes
    )


def _servers(parties: frozenset[int]) -> set[int]:
    return {party for party in parties if party >= 0}


def log_lost_in_round(round_: int) -> Condition:
    """Return the condition that a server loses its log in this round."""
    return lambda schedule: any(
        crash.forgets and crash.round == round_ for crash in schedule.crashes
    )


def answers_echo(schedule: Schedule) -> bool:
    """Return whether old answers to a server that rejoins arrive again and again."""
    return schedule.links.echoes
