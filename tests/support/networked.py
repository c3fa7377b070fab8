"""A committee on the disk and on no network: real keys, folders, logs and audit files.

Messages are passed by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Decided, Effect, Persist, Propose, Start
from fedrfq.consensus.messages import Message, Upload
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.federation.application import PublicTask
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import ReconfigurableApplication, reconfigurable
from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.node.client import WANTS
from fedrfq.node.membership import epochs, founding
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from support.cluster import Cluster
from support.committees import some_settings, uploads
from support.parties import agreed, keys

CLIENTS = 3


class Networked(Cluster):
    """Four servers and three clients; their folders are server-0 … client-0 … in `folder`."""

    def __init__(self, folder: Path, public: PublicTask | None = None) -> None:
        new_keys = keys(4, CLIENTS)
        self.folder = folder
        federation = agreed(new_keys, public)
        founding.found(folder, federation, new_keys)
        self.passes = lambda sender, receiver, message: True
        self.signers = {
            party: Ed25519Signer(each.seed)
            for party, each in zip(federation.members, new_keys, strict=True)
        }
        self._begin(federation, reconfigurable(federation))

    def _begin(self, federation: Federation, application: ReconfigurableApplication) -> None:
        self.federation = federation
        self.roster = federation.roster
        self.rules = Rules(federation.roster)
        names = list(federation.members)
        self.accused = {party: [] for party in names}
        self.timers = {}
        self.sent = []
        self.queue = deque()
        self.logs = {party: [] for party in names}
        self.decided = {party: [] for party in names}
        self.stores = {
            party: WriteAheadLog.open(self.home(party), self.rules.run) for party in names
        }
        self.audit_writers = {party: AuditWriter(self.home(party), federation) for party in names}
        self.parties = {party: self._machine(party, application) for party in names}
        for party in names:
            self.give(party, Start())

    def succeed(self, round_: int, federation: Federation, contents: Sequence[bytes] = ()) -> None:
        """Decide in this round on another federation and go on with that one; keys are kept."""
        for server in range(3):
            self.give(server, Propose(round_, federation.text.encode()))
        self.round(round_, contents)
        self.close()
        for party in self.parties:
            certificate, outcome, _ = self.decided[party][-1]
            assert outcome is not None
            epochs.activate_successor(
                self.home(party),
                epochs.encode_last(self.rules, certificate, outcome),
                federation.text.encode(),
            )
        inherited = epochs.inherited_outcome(self.home(0), federation)
        self._begin(federation, reconfigurable(federation, inherited))

    def home(self, party: int) -> Path:
        return self.folder / self.federation.members[party].name

    def _machine(self, party: int, application: ReconfigurableApplication) -> Replica | Client:
        signer = self.signers[party]
        log = self.stores[party].messages
        if party >= 0:
            return Replica(self.rules, party, signer, application, log)
        return Client(self.rules, ~party, signer, log, WANTS, application.start().public)

    def _carry_out(self, party: int, effect: Effect) -> None:
        if isinstance(effect, Persist):
            self.stores[party].append(effect.message)
            self.audit_writers[party].note(effect.message)
        elif isinstance(effect, Decided):
            self.stores[party].flush()
            self.audit_writers[party].decided(effect)
        super()._carry_out(party, effect)

    def round(self, number: int, contents: Sequence[bytes] = ()) -> None:
        """Run a round on these uploads, or random ones, with the messages that `passes` lets by."""
        asked = some_settings(len(self.federation.clients), public=self.federation.task.public)
        self.train(number, contents or uploads(asked, number).encoded(number))
        self.settle()

    def upload(self, client: int, round_: int, content: bytes) -> Message:
        return self.rules.signed(Upload(round_, client, content), self.signers[~client])

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
