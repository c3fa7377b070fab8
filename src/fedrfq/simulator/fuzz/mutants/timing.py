"""Mutants with flaws in timers, resending and fetching, and in how much they keep."""

from __future__ import annotations

from fedrfq.consensus.answers import on_fetch
from fedrfq.consensus.events import Effect, Event, Expired, Received, Timer
from fedrfq.consensus.inbox import HANDLERS
from fedrfq.consensus.messages import Fetch, Message, PartKind, ViewChange
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

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, Expired) and event.timer is Timer.RESEND:
            return []
        return super().step(event)


@breaks("progress")
class NeverFetches(Replica):
    """A server never asks for uploads that others list and it does not hold."""

    def request(self, fetch: Fetch, peer: int) -> None:
        pass


def _keep_certificate(replica: Replica, peer: int, message: Message) -> None:
    body = message.body
    if not isinstance(body, Fetch) or body.what != PartKind.CERT:
        on_fetch(replica, peer, message)


@breaks("progress", hunt=(without_faulty_servers,))
class CertificatesKept(Replica):
    """A server hands out no certificate to those who ask for it."""

    handlers = HANDLERS | {Fetch: _keep_certificate}


@breaks("bounded", hunt=(with_servers("flood", "lie"),))
class KeepsEveryChange(Replica):
    """A server keeps all view changes of another, not only the highest."""

    hoard: tuple[Message, ...] = ()

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.message.body, ViewChange):
            self.hoard += (event.message,)
        return super().step(event)


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

    hoard: tuple[Message, ...] = ()

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, Received) and event.message.body.round > self.round:
            self.hoard += (event.message,)
        return super().step(event)
