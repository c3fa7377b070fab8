"""The simulator's keys, its plainest schedule, and a bench to break its invariants by hand."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from fedrfq.consensus.events import Broadcast, Decided, Effect, Event, Expired, Persist, Timer
from fedrfq.consensus.messages import (
    Certificate,
    Commit,
    Entries,
    Inputs,
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
PLAIN = Schedule(
    seed=1,
    n=4,
    clients=4,
    rounds=3,
    minimum=3,
    deadline_ms=150,
    view_ms=100,
    resend_ms=200,
    training_ms=20,
    behaviours=(),
    faulty_clients=(),
    crashes=(),
    clock_jumps=0.0,
    weak_client=None,
    links=LinkFaults(),
)


def roster() -> Roster:
    """Return a roster of four servers and four clients with ideal signatures."""
    servers = tuple(IDEAL.key(s) for s in range(4))
    clients = tuple(IDEAL.key(~k) for k in range(4))
    return Roster(IDEAL, servers, clients)


class Bench:
    """An observer of four servers and four clients, and ways to act as them; server 3 is faulty.

    Tests use it to break the invariants by hand.
    """

    def __init__(self) -> None:
        self.rules = Rules(roster())
        self.observer = Observer(self.rules.roster, Toy(), [0, 1, 2, *(~k for k in range(4))])
        # There are no replicas whose messages could be counted: note which would have been.
        self.checked: list[int] = []
        self.observer.check_held = lambda node: self.checked.append(node.party)  # type: ignore[method-assign]
        self.uploads = [self.sign(~k, Upload(1, k, content(k))) for k in range(4)]
        for k, upload in enumerate(self.uploads):
            self.act(~k, Persist(upload), Broadcast(upload))
        self.entries = tuple((k, upload.digest) for k, upload in enumerate(self.uploads))
        self.lists = self.sign_lists(range(4), self.entries)

    def sign(self, party: int, body: Any) -> Message:
        """Sign a message with the key of any party."""
        key = self.rules.roster.key(party)
        assert key is not None
        return self.rules.signed(body, IDEAL.signer(key))

    def sign_lists(
        self, servers: Iterable[int], entries: Entries, proposals: Entries = ()
    ) -> tuple[Message, ...]:
        """Sign the same list for each of these servers."""
        return tuple(
            self.sign(server, UploadList(1, server, entries, proposals)) for server in servers
        )

    def act(self, party: int, *actions: Effect, event: Event | None = None) -> None:
        """Show the observer a step of a party."""
        machine = SimpleNamespace(round=1)
        node: Any = SimpleNamespace(party=party, honest=party != 3, machine=machine)
        # Not `event or …`: an event without fields, such as `Start()`, is an empty tuple.
        if event is None:
            event = Expired(Timer.RESEND)
        self.observer.observe(node, event, list(actions))

    def say(self, party: int, body: Any) -> None:
        """Let a party sign, persist and broadcast a message."""
        message = self.sign(party, body)
        self.act(party, Persist(message), Broadcast(message))

    def propose(
        self,
        lists: tuple[Message, ...],
        inputs: Inputs | None = None,
        previous: bytes | None = None,
        successor: bytes = b"",
    ) -> PrePrepare:
        """Return server 1's proposal from lists; by default its set is their union."""
        if inputs is None:
            inputs = self.rules.union(lists)[0]
        bodies = [Upload(1, k, content(k)) for k, _ in inputs.uploads]
        outcome = Toy().decide(1, Toy().start(), bodies)._replace(successor=successor)
        record = self.rules.record(1, previous or self.rules.run, inputs, outcome)
        return PrePrepare(1, 0, 1, record, lists, ())

    def certificate(
        self, proposal: PrePrepare, signers: tuple[int, ...] = (0, 1, 2)
    ) -> Certificate:
        """Return the certificate of a proposal that these servers commit to."""
        value = proposal.record.value(self.rules.run)
        votes = tuple((s, self.sign(s, Commit(1, 0, value, s)).signature) for s in signers)
        return Certificate(Kind.COMMIT, 0, proposal.record, votes)

    def decide(
        self, party: int, proposal: PrePrepare, signers: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        """Let a party decide a proposal that these servers commit to."""
        self.act(3, Broadcast(self.sign(1, proposal)))
        self.act(party, Decided(self.certificate(proposal, signers), None, ()))

    def breaks(self, name: str) -> Any:
        """Expect the block to break this invariant."""
        return pytest.raises(Violation, match=f"^{name}: ")
