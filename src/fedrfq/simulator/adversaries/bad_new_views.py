"""Proposals for a new view that must be refused: each is what one missing check would let pass.

Each attack takes a faulty leader, a round and a view, and returns the choice to propose with the
view changes that pretend to justify it; or None where it has not what it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from fedrfq.consensus.messages import Certificate, Message, ViewChange
from fedrfq.simulator.adversaries.ring import Choice

if TYPE_CHECKING:
    from fedrfq.simulator.adversaries.changing import Mutate


class NewView(NamedTuple):
    """What the leader of a new view proposes, and the view changes it shows for it."""

    choice: Choice
    changes: tuple[Message, ...]


Attack = Callable[["Mutate", int, int], NewView | None]


def _prepared_in(message: Message) -> Certificate | None:
    """Return the certificate that a view change shows."""
    assert isinstance(message.body, ViewChange)
    return message.body.prepared


def _by_server(changes: dict[int, Message]) -> tuple[Message, ...]:
    """Return view changes in the order that a proper proposal has them in."""
    return tuple(message for _, message in sorted(changes.items()))


def _showing_nothing(changes: dict[int, Message]) -> list[Message]:
    return [message for message in _by_server(changes) if _prepared_in(message) is None]


def ignore(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Choose freely, although the view changes may show something prepared."""
    choice = leader.ring.draw_choice(round_)
    known = leader.known_changes(round_, view)
    if choice is None or len(known) < leader.ring.roster.quorum:
        return None
    return NewView(choice, _by_server(known))


def conceal(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Show only view changes with nothing prepared, and the last of them as often as needed."""
    choice = leader.ring.draw_choice(round_)
    empty = _showing_nothing(leader.known_changes(round_, view))
    if choice is None or not empty:
        return None
    quorum = leader.ring.roster.quorum
    padded = empty + empty[-1:] * quorum
    return NewView(choice, tuple(padded[:quorum]))


def too_few(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Show one view change less than a quorum."""
    concealed = conceal(leader, round_, view)
    if concealed is None:
        return None
    distinct = tuple(dict.fromkeys(concealed.changes))
    return NewView(concealed.choice, distinct[: leader.ring.roster.quorum - 1])


def stale(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Show view changes for other views, made before anything was prepared."""
    return _borrowed(leader, round_, view, lambda body: body.round == round_)


def foreign(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Show view changes of other rounds."""
    return _borrowed(leader, round_, view, lambda body: body.round != round_)


def _borrowed(
    leader: Mutate, round_: int, view: int, fits: Callable[[ViewChange], bool]
) -> NewView | None:
    choice = leader.ring.draw_choice(round_)
    changes = leader.known_changes(round_, view)
    for _, elsewhere in sorted(leader.ring.changes.items()):
        changes |= {s: m for s, m in elsewhere.items() if _is_usable(m, fits)}
    empty = _showing_nothing(changes)
    quorum = leader.ring.roster.quorum
    if choice is None or len(empty) < quorum:
        return None
    return NewView(choice, tuple(empty[:quorum]))


def _is_usable(message: Message, fits: Callable[[ViewChange], bool]) -> bool:
    body = message.body
    return isinstance(body, ViewChange) and body.prepared is None and fits(body)


def forged(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Show view changes in the names of honest servers, signed by the faulty one."""
    choice = leader.ring.draw_choice(round_)
    mine = leader.ring.view_change(leader.me, round_, view)
    if choice is None or mine is None or not isinstance(mine.body, ViewChange):
        return None
    bodies = [replace(mine.body, server=server) for server in range(leader.ring.roster.n)]
    return NewView(choice, tuple(leader.ring.sign(leader.me, body) for body in bodies))


def claim(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Bind the new view to a value that was never prepared, or to a real one of a low view."""
    known = leader.known_changes(round_, view)
    if leader.rng.random() < 0.6:
        certificate = leader.fake_prepared(round_, view)
    else:
        certificate = leader.lowest_prepared(round_, view)
    change = leader.ring.view_change(leader.me, round_, view, certificate)
    if certificate is None or change is None or len(known) < leader.ring.roster.quorum:
        return None
    known[leader.me] = change
    return NewView(Choice(certificate.record, ()), _by_server(known))


def lowest(leader: Mutate, round_: int, view: int) -> NewView | None:
    """Carry on with the lowest of several prepared certificates instead of the highest."""
    known = leader.known_changes(round_, view)
    certificates = [c for message in known.values() if (c := _prepared_in(message)) is not None]
    if not certificates or len(known) < leader.ring.roster.quorum:
        return None
    certificate = min(certificates, key=lambda c: c.view)
    return NewView(Choice(certificate.record, ()), _by_server(known))


ATTACKS: tuple[Attack, ...] = (
    ignore,
    conceal,
    too_few,
    stale,
    foreign,
    forged,
    claim,
    lowest,
)
