"""Mutants that count too few votes, or votes that do not belong together."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property

from fedrfq.consensus.messages import (
    Certificate,
    Commit,
    Kind,
    Message,
    PrePrepare,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster, faults, quorum
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.votes import Slots, Votes
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.schedule_conditions import decided_alone, with_servers


def roster_as(kind: type[Roster], roster: Roster) -> Roster:
    """Return the same roster as an object of a subclass."""
    return kind(**{field.name: getattr(roster, field.name) for field in fields(roster)})


class _OneShort(Roster):
    @cached_property
    def quorum(self) -> int:
        return quorum(self.n) - 1


class _TwiceFaultsPlusOne(Roster):
    @cached_property
    def quorum(self) -> int:
        return 2 * faults(self.n) + 1


@breaks("agreement", "certificate")
class QuorumOneShort(Rules):
    """A quorum has one vote too few."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster_as(_OneShort, roster))


@breaks("agreement", "certificate", servers=5)
class QuorumOfFive(Rules):
    """Among five servers, 2f+1 count as a quorum."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster_as(_TwiceFaultsPlusOne, roster))


@breaks("agreement", "certificate", servers=6)
class QuorumOfSix(QuorumOfFive):
    """Among six servers, 2f+1 count as a quorum."""


@breaks("certificate")
class RepeatedVoters(Rules):
    """A certificate may name a server twice."""

    def certifies(self, certificate: Certificate, phase: Kind) -> bool:
        enough = len(certificate.signatures) >= self.roster.quorum
        return certificate.phase == phase and enough and self._votes_hold(certificate)


@breaks("agreement", hunt=(with_servers("mutate"), decided_alone))
class RepeatedChanges(Rules):
    """One server's view change, repeated, justifies a new view."""

    def proper_changes(self, body: PrePrepare) -> bool:
        place = (body.round, body.view)
        changes = [
            m for m in body.changes if isinstance(m.body, ViewChange) and self.proper_change(m.body)
        ]
        valid = [m for m in changes if (m.body.round, m.view) == place and self.authentic(m)]
        needed = self.roster.quorum if body.view else 0
        return len(valid) == len(body.changes) >= needed


@breaks("union", "censorship", hunt=(with_servers("censor"),))
class RepeatedLists(Rules):
    """One server's list, repeated, justifies a free choice."""

    def proper_lists(self, body: PrePrepare) -> bool:
        return len(body.lists) >= self.roster.n - self.roster.f and _are_proper(self, body)


@breaks("union", "censorship", hunt=(with_servers("censor"),))
class FewerLists(Rules):
    """f+1 lists justify a free choice."""

    def proper_lists(self, body: PrePrepare) -> bool:
        servers = {message.server for message in body.lists}
        enough = len(servers) == len(body.lists) > self.roster.f
        return enough and _are_proper(self, body)


def _are_proper(rules: Rules, body: PrePrepare) -> bool:
    return all(
        isinstance(m.body, UploadList)
        and m.body.round == body.round
        and rules.authentic(m)
        and rules.proper_list(m.body)
        for m in body.lists
    )


class _OfAnyView(Votes):
    def alike(self, slots: Slots, view: int, value: bytes) -> list[Message]:
        return [m for m in slots.values() if m.value == value]


class _OfAnyValue(Votes):
    def alike(self, slots: Slots, view: int, value: bytes) -> list[Message]:
        return [m for m in slots.values() if m.view == view]


@breaks("certificate")
class VotesOfAnyView(Replica):
    """Votes of different views are counted together."""

    make_votes = _OfAnyView


@breaks("certificate")
class VotesOfAnyValue(Replica):
    """Votes for different values are counted together."""

    make_votes = _OfAnyValue


@breaks("agreement", hunt=(decided_alone,))
class CommitsUnprepared(Replica):
    """A server commits as soon as it has sent its own PREPARE."""

    def _commit(self) -> bool:
        value = self.state.own[Kind.PREPARE].value
        self._sign(Commit(self.round, self.view, value, self.me))
        return True
