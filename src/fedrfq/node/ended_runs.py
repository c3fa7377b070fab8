"""What a server still answers about runs that have ended.

A party that was away when a run ended gets from here the certificates and the outcome that lead to
the current run.
"""

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
from fedrfq.node.logs import log_event
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from fedrfq.node.transport.budget import honest_sizes


class _EndedRun:
    """The replica of a run that has ended: it signs nothing more, and answers questions.

    Parties go by their names here, because their numbers may differ from run to run.
    """

    def __init__(self, folder: Path, identity: Identity, federation: Federation) -> None:
        self.store = WriteAheadLog.open(folder, federation.roster.run)
        self.sizes = honest_sizes(federation)
        self._names = {party: member.name for party, member in federation.members.items()}
        self._numbers = {name: party for party, name in self._names.items()}
        # What the run inherited is left out: it only matters for computing an outcome, and this
        # run has one.
        self._replica = Replica(
            Rules(federation.roster),
            self._numbers[identity.member.name],
            identity.signer,
            reconfigurable(federation),
            self.store.messages,
        )

    @property
    def over(self) -> bool:
        """Whether the log says that the run has ended."""
        return self._replica.over

    def knows(self, name: str, is_server: bool) -> bool:
        """Tell whether a party of this name took part, and in the same role.

        Servers may ask for what clients may not, so a client does not inherit a server's name.
        """
        return name in self._numbers and (self._numbers[name] >= 0) == is_server

    def answer(self, name: str, message: Message) -> list[tuple[str, Message]]:
        """Return the answers to a party's message, each with the name of its receiver."""
        effects = self._replica.step(Received(self._numbers[name], message))
        return [
            (self._names[effect.to], effect.message)
            for effect in effects
            if isinstance(effect, Send)
        ]


class EndedRuns:
    """The ended runs in a party's folder that the party took part in."""

    def __init__(self, identity: Identity) -> None:
        self._names = {party: member.name for party, member in identity.federation.members.items()}
        self._numbers = {name: party for party, name in self._names.items()}
        self._runs: dict[bytes, _EndedRun] = {}
        for number, run in enumerate(epochs.ended_epochs(identity.folder), 1):
            log = identity.folder / epochs.PAST / str(number) / "log"
            names = {member.name for member in run.federation.members.values()}
            if log.is_dir() and identity.member.name in names:
                self._add(log.parent, identity, run.federation)

    def _add(self, folder: Path, identity: Identity, federation: Federation) -> None:
        """Add a run if its log is intact."""
        try:
            run = _EndedRun(folder, identity, federation)
        except UserError as error:
            log_event("cannot serve a run that has ended", "warning", why=str(error))
            return
        # If the log does not say that the run is over, its replica might still sign something.
        if run.over:
            self._runs[federation.roster.run] = run
        else:
            run.store.close()

    def __contains__(self, run: bytes) -> bool:
        return run in self._runs

    def answer(self, peer: int, run: bytes, data: bytes) -> list[tuple[int, Message]]:
        """Return what to send, and to whom, when a peer sends a message of an ended run."""
        name = self._names[peer]
        if not self._runs[run].knows(name, peer >= 0):
            return []
        try:
            answers = self._runs[run].answer(name, decode(data, self._runs[run].sizes))
        except Refused:
            return []
        # A receiver may have left the federation since.
        return [(self._numbers[to], each) for to, each in answers if to in self._numbers]

    def close(self) -> None:
        """Close the logs of all runs."""
        for run in self._runs.values():
            run.store.close()
