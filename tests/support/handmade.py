"""Handmade messages of a small committee, and certificates with the signatures a test wants."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.messages import (
    AnyMessage,
    Certificate,
    Commit,
    Kind,
    Message,
    Prepare,
    Record,
    author,
)
from fedrfq.consensus.records import NO_SUCCESSOR
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from support.strategies import Seals, seal

SIZES = (4, 5, 6, 7)
ROUND = 6  # led by server ROUND % n in view 0


def digest(text: str) -> bytes:
    return text.encode().ljust(32, b".")


def committee(n: int = 4, clients: int = 3, minimum: int = 1, purpose: bytes = b"") -> Rules:
    parties = [
        tuple(b"%s %d" % (who, i) for i in range(k))
        for who, k in ((b"server", n), (b"client", clients))
    ]
    return Rules(Roster(Seals(), *parties, purpose=purpose, minimum=minimum))


def sign(rules: Rules, body: AnyMessage, by: int | None = None) -> Message:
    """Return a message signed by its author, or by somebody else in its name."""
    party = author(body) if by is None else by
    assert party is not None
    return rules.signed(body, lambda raw: seal(rules.roster.key(party) or b"a stranger's", raw))


def record(name: str = "a", round_: int = ROUND) -> Record:
    parts = [digest(name), digest("g"), digest("v"), digest("s"), digest("p"), NO_SUCCESSOR]
    return Record(round_, digest("before"), *parts)


def vote(phase: Kind, view: int, what: Record, server: int, run: bytes) -> Prepare | Commit:
    return (Prepare if phase == Kind.PREPARE else Commit)(what.round, view, what.value(run), server)


def certified(
    rules: Rules, phase: Kind, servers: Iterable[int], view: int = 0, what: Record | None = None
) -> Certificate:
    """Return a certificate with the signatures of these servers, enough or not."""
    if what is None:
        what = record()
    votes = [sign(rules, vote(phase, view, what, server, rules.run)) for server in servers]
    return Certificate(phase, view, what, tuple((author(v.body) or 0, v.signature) for v in votes))


def entry(client: int, name: str = "x") -> tuple[int, bytes]:
    return client, digest(name)
