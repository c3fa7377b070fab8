"""The simulator's keys and its plainest schedule, and a bench on which its invariants can be broken by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedrfq.consensus.events import Broadcast, Decided, Effect, Event, Expired, Persist, Timer
from fedrfq.consensus.messages import (
    Certificate,
    Commit,
    Kind,
    Message,
    PrePrepare,
    Upload,
    UploadList,
)
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures
from fedrfq.simulator.fuzz.invariants import Observer
from fedrfq.simulator.fuzz.schedule import Schedule
from fedrfq.simulator.fuzz.toy import Toy, content
from fedrfq.simulator.network import LinkFaults
from fedrfq.simulator.violation import Violation

IDEAL = IdealSignatures()
PLAIN = Schedule(1, 4, 4, 3, 3, 150, 100, 200, 20, (), (), (), 0.0, None, LinkFaults())


def roster() -> Roster:
    servers = tuple(IDEAL.key(s) for s in range(4))
    clients = tuple(IDEAL.key(~k) for k in range(4))
    return Roster(IDEAL, servers, clients)


class Bench:
    """An observer of four honest servers and clients, but for server 3, and means to make them say things."""

    def __init__(self) -> None:
        self.rules = Rules(roster())
        self.observer = Observer(self.rules.roster, Toy(), [0, 1, 2, *(~k for k in range(4))])
        self.observer.check_held = lambda node: self.looked.append(node.party)  # type: ignore[method-assign]
        self.looked: list[int] = []  # at what these servers hold, which here is nothing
        self.uploads = [self.said(~k, Upload(1, k, content(k))) for k in range(4)]
        for k, upload in enumerate(self.uploads):
            self.does(~k, Persist(upload), Broadcast(upload))
        self.entries = tuple((k, upload.digest) for k, upload in enumerate(self.uploads))
        self.lists = tuple(self.said(s, UploadList(1, s, self.entries)) for s in range(4))

    def said(self, party: int, body: Any) -> Message:
        key = self.rules.roster.key(party)
        assert key is not None
        return self.rules.signed(body, IDEAL.signer(key))

    def does(self, party: int, *actions: Effect, event: Event | None = None) -> None:
        node: Any = SimpleNamespace(
            party=party, honest=party != 3, machine=SimpleNamespace(round=1)
        )
        self.observer.observe(node, Expired(Timer.RESEND) if event is None else event, list(actions))

    def says(self, party: int, body: Any) -> None:
        message = self.said(party, body)
        self.does(party, Persist(message), Broadcast(message))

    def proposed(
        self, lists: tuple[Message, ...], entries: Any = None, previous: bytes | None = None
    ) -> PrePrepare:
        if entries is None:
            entries = self.rules.union(lists)[0]
        else:
            entries = entries
        bodies = [Upload(1, k, content(k)) for k, _ in entries]
        outcome = Toy().decide(1, Toy().start(), bodies)
        return PrePrepare(
            1, 0, 1, self.rules.record(1, previous or self.rules.run, entries, outcome), lists, ()
        )

    def certificate(
        self, proposal: PrePrepare, signers: tuple[int, ...] = (0, 1, 2)
    ) -> Certificate:
        value = proposal.record.value(self.rules.run)
        votes = tuple((s, self.said(s, Commit(1, 0, value, s)).signature) for s in signers)
        return Certificate(Kind.COMMIT, 0, proposal.record, votes)

    def decides(
        self, party: int, proposal: PrePrepare, signers: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        self.does(3, Broadcast(self.said(1, proposal)))
        self.does(party, Decided(self.certificate(proposal, signers), None, ()))

    def breaks(self, name: str) -> Any:
        return pytest.raises(Violation, match=f"^{name}: ")
