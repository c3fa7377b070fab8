"""A committee on the disk, and on no network: real keys, folders, logs and chronicles, and messages passed by hand."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Decided, Effect, Persist, Start, Trained
from fedrfq.consensus.messages import Message, Upload, What
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.federation.federation_file import Charter
from fedrfq.federation.reconfiguration import Chartered, chartered
from fedrfq.federation.signatures import Signer
from fedrfq.node.membership import epochs, founding
from fedrfq.node.storage.audit_writer import Chronicle
from fedrfq.node.storage.write_ahead_log import Store
from support.cluster import Cluster
from support.committees import mandate, uploads
from support.parties import agreed, keys

CLIENTS = 3


class Networked(Cluster):
    """Four servers and three clients; their folders are server-0 … client-0 … in `folder`."""

    def __init__(self, folder: Path) -> None:
        made = keys(4, CLIENTS)
        self.folder, charter = folder, agreed(made)
        founding.found(folder, charter, made)
        self.passes = lambda sender, receiver, message: True
        self.signers = {
            party: Signer(each.seed) for party, each in zip(charter.seats, made, strict=True)
        }
        self._begin(charter, chartered(charter))

    def _begin(self, charter: Charter, application: Chartered) -> None:
        self.charter, self.roster, self.rules, names = (
            charter,
            charter.roster,
            Rules(charter.roster),
            list(charter.seats),
        )
        self.accused, self.timers, self.sent, self.queue = (
            {party: [] for party in names},
            {},
            [],
            deque(),
        )
        self.logs, self.decided = {party: [] for party in names}, {party: [] for party in names}
        self.stores = {party: Store.open(self.home(party), self.rules.run) for party in names}
        self.chronicles = {party: Chronicle(self.home(party), charter) for party in names}
        self.parties = {party: self._machine(party, application) for party in names}
        for party in names:
            self.give(party, Start())

    def succeed(self, round_: int, charter: Charter) -> None:
        """In this round the servers move another federation; it goes on with that one. Seats keep their keys."""
        for server in range(3):
            self.give(server, Trained(round_, charter.text.encode()))
        self.round(round_)
        self.close()
        for party in self.parties:
            certificate, outcome, _ = self.decided[party][-1]
            assert outcome is not None
            epochs.turn(
                self.home(party),
                epochs.last_of(self.rules, certificate, outcome),
                charter.text.encode(),
            )
        heritage = epochs.heritage(self.home(0), charter)
        self._begin(charter, chartered(charter, heritage))

    def home(self, party: int) -> Path:
        return self.folder / self.charter.seats[party].name

    def _machine(self, party: int, application: Chartered) -> Replica | Client:
        signer, log = self.signers[party], self.stores[party].messages
        if party >= 0:
            return Replica(self.rules, party, signer, application, log)
        return Client(self.rules, ~party, signer, log, (What.GLOBALS, What.VERDICTS))

    def _carry_out(self, party: int, effect: Effect) -> None:
        if isinstance(effect, Persist):
            self.stores[party].append(effect.message)
            self.chronicles[party].note(effect.message)
        elif isinstance(effect, Decided):
            self.stores[party].flush()
            self.chronicles[party].decided(effect)
        super()._carry_out(party, effect)

    def round(self, number: int) -> None:
        """One round, with whatever the filter lets through."""
        self.train(number, uploads(mandate(len(self.charter.clients)), number).encoded(number))
        self.settle()

    def upload(self, client: int, round_: int, content: bytes) -> Message:
        return self.rules.signed(Upload(round_, client, content), self.signers[~client])

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
