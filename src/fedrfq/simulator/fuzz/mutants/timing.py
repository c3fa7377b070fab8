"""Too late, too often, or never: timers, resending, and how much is kept."""

from __future__ import annotations

from fedrfq.consensus.events import Effect, Event
from fedrfq.consensus.messages import Fetch, Message, PartKind, author
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.mutants.quorums import like


class _Steady(Roster):
    def timeout_ms(self, view: int) -> int:
        return self.view_ms


@breaks("progress")
class TimeoutNeverDoubled(Rules):
    """Every view has as little time as the first."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(like(roster, _Steady))


@breaks("progress")
class TimerNeverStarted(Replica):
    """It waits for a leader for ever."""

    def _time(self) -> bool:
        return False


@breaks("progress")
class NeverResends(Replica):
    """What is lost stays lost."""

    def _resend(self) -> None:
        pass


@breaks("progress")
class NeverFetches(Replica):
    """What others list and it does not hold it never asks for."""

    def _want(self, fetch: Fetch, peer: int) -> None:
        pass


@breaks("progress")
class CertificatesKept(Replica):
    """Who asks for the certificate of a round does not get it."""

    def _find(self, fetch: Fetch) -> Message | None:
        if fetch.what == PartKind.CERT:
            return None
        return super()._find(fetch)


@breaks("bounded")
class KeepsEveryChange(Replica):
    """It keeps all view changes of a server, not the highest alone."""

    hoard: tuple[Message, ...] = ()

    def _on_change(self, peer: int, message: Message) -> None:
        super()._on_change(peer, message)
        self.hoard += (message,)


@breaks("bounded")
class KeepsEveryEvent(Replica):
    """It keeps all that ever happened to it, as it came."""

    hoard: tuple[Event, ...] = ()

    def step(self, event: Event) -> list[Effect]:
        self.hoard += (event,)
        return super().step(event)


@breaks("bounded")
class KeepsEverythingEarly(Replica):
    """It keeps whatever comes of rounds ahead."""

    def _place(self, peer: int, message: Message) -> None:
        super()._place(peer, message)
        if message.body.round > self.round:
            self.early[message.body.kind, author(message.body) or 0, len(self.early)] = (
                peer,
                message,
            )
