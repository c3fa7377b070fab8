"""Mutants with flaws in timers, resending and fetching, and in how much they keep."""

from __future__ import annotations

from fedrfq.consensus.events import Effect, Event
from fedrfq.consensus.messages import Fetch, Message, PartKind, author
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.mutants.quorums import roster_as
from fedrfq.simulator.fuzz.schedule_conditions import with_servers, without_faulty_servers


class _ConstantTimeout(Roster):
    def timeout_ms(self, view: int) -> int:
        return self.view_ms


@breaks("progress")
class TimeoutNeverDoubled(Rules):
    """Every view has as little time as the first."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster_as(_ConstantTimeout, roster))


@breaks("progress")
class TimerNeverStarted(Replica):
    """A server waits for a leader forever."""

    def _start_view_timer(self) -> bool:
        return False


@breaks("progress")
class NeverResends(Replica):
    """A server never sends a lost message again."""

    def _resend(self) -> None:
        pass


@breaks("progress")
class NeverFetches(Replica):
    """A server never asks for uploads that others list and it does not hold."""

    def _request(self, fetch: Fetch, peer: int) -> None:
        pass


@breaks("progress", hunt=(without_faulty_servers,))
class CertificatesKept(Replica):
    """A server hands out no certificate to those who ask for it."""

    def _find(self, fetch: Fetch) -> Message | None:
        if fetch.what == PartKind.CERT:
            return None
        return super()._find(fetch)


@breaks("bounded", hunt=(with_servers("flood", "lie"),))
class KeepsEveryChange(Replica):
    """A server keeps all view changes of another, not only the highest."""

    hoard: tuple[Message, ...] = ()

    def _on_change(self, peer: int, message: Message) -> None:
        super()._on_change(peer, message)
        self.hoard += (message,)


@breaks("bounded")
class KeepsEveryEvent(Replica):
    """A server keeps every event that ever happened to it."""

    hoard: tuple[Event, ...] = ()

    def step(self, event: Event) -> list[Effect]:
        self.hoard += (event,)
        return super().step(event)


@breaks("bounded", hunt=(with_servers("flood", "lie"),))
class KeepsEverythingEarly(Replica):
    """A server keeps all messages of rounds ahead."""

    def _route_by_round(self, peer: int, message: Message) -> None:
        super()._route_by_round(peer, message)
        if message.body.round > self.round:
            # A key of its own for every message, where the true server has one for each author.
            key = (message.body.kind, author(message.body) or 0, len(self.early))
            self.early[key] = (peer, message)
