"""Proposals for a new view that ought to be refused: each is what one missing check would let pass.

Of a faulty leader, a round and a view, each makes the record with its lists, and the view changes to go with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fedrfq.consensus.messages import Message, ViewChange
from fedrfq.simulator.adversaries.ring import Choice

if TYPE_CHECKING:
    from fedrfq.simulator.adversaries.changing import Mutate

Made = tuple[Choice, tuple[Message, ...]] | None
Attack = Callable[["Mutate", int, int], Made]


def ignore(evil: Mutate, round_: int, view: int) -> Made:
    """A free choice, whatever the view changes show to be prepared."""
    choice = evil.ring.choice(round_)
    known = evil.known(round_, view)
    if choice is None or len(known) < evil.ring.roster.quorum:
        return None
    return choice, tuple(m for _, m in sorted(known.items()))


def conceal(evil: Mutate, round_: int, view: int) -> Made:
    """Only view changes that show nothing prepared: of the faulty many times, of honest servers if there are such."""
    choice = evil.ring.choice(round_)
    known = evil.known(round_, view)
    empty = [
        m
        for _, m in sorted(known.items())
        if isinstance(m.body, ViewChange) and m.body.prepared is None
    ]
    if choice is None or not empty:
        return None
    wanted = evil.ring.roster.quorum
    return choice, tuple((empty + empty[-1:] * wanted)[:wanted])


def too_few(evil: Mutate, round_: int, view: int) -> Made:
    """One view change less than a quorum."""
    attack = conceal(evil, round_, view)
    if attack is None:
        return None
    return (attack[0], tuple(dict.fromkeys(attack[1]))[: evil.ring.roster.quorum - 1])


def stale(evil: Mutate, round_: int, view: int) -> Made:
    """View changes of other views, made before anything was prepared."""
    return _borrowed(evil, round_, view, lambda body: body.round == round_)


def foreign(evil: Mutate, round_: int, view: int) -> Made:
    """View changes of other rounds."""
    return _borrowed(evil, round_, view, lambda body: body.round != round_)


def _borrowed(evil: Mutate, round_: int, view: int, fits: Callable[[ViewChange], bool]) -> Made:
    choice = evil.ring.choice(round_)
    found = evil.known(round_, view)
    for _, changes in sorted(evil.ring.changes.items()):
        for server, message in changes.items():
            if (
                isinstance(message.body, ViewChange)
                and message.body.prepared is None
                and fits(message.body)
            ):
                found[server] = message
    empty = [
        m
        for _, m in sorted(found.items())
        if isinstance(m.body, ViewChange) and m.body.prepared is None
    ]
    if choice is None or len(empty) < evil.ring.roster.quorum:
        return None
    return choice, tuple(empty[: evil.ring.roster.quorum])


def forged(evil: Mutate, round_: int, view: int) -> Made:
    """View changes in the name of honest servers, which they never signed."""
    choice = evil.ring.choice(round_)
    mine = evil.ring.change(evil.me, round_, view)
    if choice is None or mine is None or not isinstance(mine.body, ViewChange):
        return None
    made = [
        evil.ring.sign(evil.me, replace(mine.body, server=server))
        for server in range(evil.ring.roster.n)
    ]
    return choice, tuple(made)


def claim(evil: Mutate, round_: int, view: int) -> Made:
    """A certificate that was never prepared, as if the new view were bound to it; or a real one of a low view."""
    known = evil.known(round_, view)
    if evil.rng.random() < 0.6:
        made = evil.fake_prepared(round_, view)
    else:
        made = evil.prepared(round_, view)
    change = evil.ring.change(evil.me, round_, view, made)
    if made is None or change is None or len(known) < evil.ring.roster.quorum:
        return None
    known[evil.me] = change
    return Choice(made.record, ()), tuple(m for _, m in sorted(known.items()))


def lowest(evil: Mutate, round_: int, view: int) -> Made:
    """Goes on with the lowest certificate of several."""
    known = evil.known(round_, view)
    found = [
        m.body.prepared
        for m in known.values()
        if isinstance(m.body, ViewChange) and m.body.prepared is not None
    ]
    if not found or len(known) < evil.ring.roster.quorum:
        return None
    return Choice(min(found, key=lambda p: p.view).record, ()), tuple(
        m for _, m in sorted(known.items())
    )


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
