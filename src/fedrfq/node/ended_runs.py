"""What a server still says of runs that are over: whoever was away when one ended gets the certificates and the outcome that
lead to the present one."""

from __future__ import annotations

from pathlib import Path

from fedrfq.consensus.events import Received, Send
from fedrfq.consensus.messages import Message, decode
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import reconfigurable
from fedrfq.node.logs import say
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.write_ahead_log import WriteAheadLog

RUN = slice(9, 41)  # where a message has its run's id


class _Run:
    """The replica of a run that is over: it signs nothing more, and answers questions."""

    def __init__(self, folder: Path, identity: Identity, federation: Federation) -> None:
        self.store = WriteAheadLog.open(folder, federation.roster.run)
        self._numbers = {member.name: party for party, member in federation.members.items()}
        self._names = {party: member.name for party, member in federation.members.items()}
        me = self._numbers[identity.member.name]
        # where the run started from no longer matters: it has an outcome
        self._replica = Replica(
            Rules(federation.roster),
            me,
            identity.signer,
            reconfigurable(federation),
            self.store.messages,
        )

    @property
    def over(self) -> bool:
        return self._replica.over

    def knows(self, name: str, server: bool) -> bool:
        """Whether a party of that name took part, and as the same: what servers may ask, a client may not."""
        return name in self._numbers and (self._numbers[name] >= 0) == server

    def answer(self, name: str, message: Message) -> list[tuple[str, Message]]:
        """To whom what is said, by names, when a party of that name says this."""
        effects = self._replica.step(Received(self._numbers[name], message))
        return [(self._names[one.to], one.message) for one in effects if isinstance(one, Send)]


class EndedRuns:
    """Those of a party's folder that it took part in."""

    def __init__(self, identity: Identity) -> None:
        self._names = {party: member.name for party, member in identity.federation.members.items()}
        self._numbers = {name: party for party, name in self._names.items()}
        self._runs: dict[bytes, _Run] = {}
        for number, run in enumerate(epochs.ended_epochs(identity.folder), 1):
            log = identity.folder / epochs.PAST / str(number) / "log"
            if log.is_dir() and identity.member.name in {
                member.name for member in run.federation.members.values()
            }:
                self._take(log.parent, identity, run.federation)

    def _take(self, folder: Path, identity: Identity, federation: Federation) -> None:
        """A run, if its log is whole: where it does not say that the run is over, its replica might still sign something."""
        try:
            run = _Run(folder, identity, federation)
        except UserError as error:
            say("of a run that is over nothing can be told", "warning", why=str(error))
            return
        if run.over:
            self._runs[federation.roster.run] = run
        else:
            run.store.close()

    def __contains__(self, run: bytes) -> bool:
        return run in self._runs

    def answer(self, peer: int, run: bytes, data: bytes) -> list[tuple[int, Message]]:
        """What is to be sent when a peer speaks of a run that is over."""
        name = self._names[peer]
        try:
            if self._runs[run].knows(name, peer >= 0):
                said = self._runs[run].answer(name, decode(data))
            else:
                said = []
        except Refused:
            return []
        return [(self._numbers[name], one) for name, one in said if name in self._numbers]

    def close(self) -> None:
        for run in self._runs.values():
            run.store.close()
