"""Whose keys a node has, and by whose word it goes: what a result has to be before a client learns from it.

Keys come from the experiment's seed, as its simulated committee's do, or lie in the folders of a real federation's clients.
The server app has no part in it: it can neither sign for a client nor make up what a committee decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedrfq.committee import Simulated
from fedrfq.consensus.messages import Cert, Kind, Message, Part, PartKind, Upload, part_digest
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table, name_of
from fedrfq.federation import codec, round_log, signatures
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.files import toml
from fedrfq.flower.messages import MOST_CLIENTS
from fedrfq.learning.round_loop import mandate
from fedrfq.methods import METHODS
from fedrfq.node.hosting import HOSTED
from fedrfq.node.membership.identity import read_federation, read_signer
from fedrfq.node.storage.log_reader import FOLDER as LOG
from fedrfq.node.storage.party_folder import FEDERATION, VOTE_KEY
from fedrfq.prototypes.fixed_point import Globals


@dataclass(frozen=True)
class Result:
    """What was decided in a round: the global prototypes, and whose uploads there is a verdict on."""

    globals_: Globals
    judged: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Trust:
    """The clients that a node speaks for, in ascending order, and the committee that it believes: none where nothing is
    exchanged, and then there are no keys either."""

    experiment: Experiment
    clients: tuple[int, ...]
    federation: Federation | None
    signers: Mapping[int, Ed25519Signer]
    folders: tuple[Path, ...] = ()  # of the clients, where their keys lie in such

    @property
    def run(self) -> str:
        """The federation's, in hex."""
        if self.federation:
            return self.federation.roster.run.hex()
        return ""

    @cached_property
    def _rules(self) -> Rules:
        assert self.federation is not None
        return Rules(self.federation.roster)

    def signed(self, client: int, round_: int, content: bytes) -> bytes:
        """The client's upload as it goes over the wire."""
        return self._rules.signed(Upload(round_, client, content), self.signers[client]).wire

    def verified(self, round_: int, last: bytes) -> Result:
        """What these bytes say of a round, once this federation's committee is found to have certified it."""
        if self.federation is None or round_ == 0:
            return self._nothing(round_, last)
        task = self.federation.task
        try:
            globals_, verdicts = self._certified(round_, last)
            if codec.successor_in(verdicts):
                raise UserError(
                    f"the federation was changed in round {round_}: its clients go on by `fedrfq client`, once {HOSTED} is "
                    f"removed from their folders"
                )
            judged = frozenset(codec.decode_verdicts_without_successor(verdicts)[0])
            return Result(codec.decode_globals(globals_, task.classes, task.values), judged)
        except Refused as error:
            raise UserError(
                f"the result of round {round_} is refused, this federation did not certify it: {error}"
            ) from error

    def _nothing(self, round_: int, last: bytes) -> Result:
        if last:
            raise UserError(f"a result of round {round_} is refused: there can be none")
        return Result(Globals.none(0, 0) if self.federation is None else _unknown(self.federation))

    def _certified(self, round_: int, last: bytes) -> tuple[bytes, bytes]:
        """Global prototypes and verdicts, as certified."""
        messages = [placed.message for placed in round_log.unpack(last)]
        if messages:
            cert = messages[0].body
        else:
            cert = None
        if not isinstance(cert, Cert):
            raise Refused("it does not begin with a certificate")
        if any(message.run != self._rules.run for message in messages):
            raise Refused("it is of another run")
        record = cert.certificate.record
        if record.round != round_:
            raise Refused(f"its certificate is of round {record.round}")
        if not self._rules.certifies(cert.certificate, Kind.COMMIT):
            raise Refused("its certificate does not have enough servers' signatures")
        globals_, verdicts = (
            _part(messages[1:], what) for what in (PartKind.GLOBALS, PartKind.VERDICTS)
        )
        if (
            part_digest(PartKind.GLOBALS, globals_) != record.globals_
            or part_digest(PartKind.VERDICTS, verdicts) != record.verdicts
        ):
            raise Refused("what it says is not what was certified")
        return globals_, verdicts


def _part(messages: list[Message], what: PartKind) -> bytes:
    found = [
        message.body.content
        for message in messages
        if isinstance(message.body, Part) and message.body.what == what
    ]
    if len(found) != 1 or len(messages) != 2:
        raise Refused(f"it has {len(found)} times {what.name}, among {len(messages)} parts")
    return found[0]


def _unknown(federation: Federation) -> Globals:
    return Globals.none(federation.task.classes, federation.task.values)


# Simulated federations


def experiment_of(text: str) -> Experiment:
    """An experiment as the server app sends it."""
    try:
        table = toml.strict(text)
        clients = table.get("clients")
        if isinstance(clients, int) and clients > MOST_CLIENTS:  # or they would all be gone through
            raise ValueError(f"of its {clients} clients {MOST_CLIENTS} can be hosted")
        return from_table(table)
    except (ValueError, OverflowError) as error:
        raise UserError(f"the server app's experiment cannot be read: {error}") from error


def simulated(experiment: Experiment, clients: range, classes: int) -> Trust:
    """Of a federation whose committee is simulated, or that has none because nothing is exchanged."""
    if not experiment.method.exchanges:
        if experiment.method.centres:
            name = name_of(METHODS, experiment.method)
            raise UserError(
                f"'{name}' averages models, which no committee can certify: use `fedrfq run`"
            )
        return Trust(experiment, tuple(clients), None, {})
    if not isinstance(experiment.committee, Simulated):
        raise UserError(
            'nodes believe what a committee certified, and this experiment has none: set committee.name = "simulated"'
        )
    federation = experiment.committee.federation(mandate(experiment, classes))
    signers = {
        client: signatures.simulated(experiment.seed, "client", client) for client in clients
    }
    return Trust(experiment, tuple(clients), federation, signers)


# Real federations


def of_folders(path: Path) -> Trust:
    """Of the client whose folder this is, or of all clients whose folders lie in it."""
    if (path / VOTE_KEY).exists():
        found = [path]
    else:
        found = sorted(key.parent for key in path.glob(f"*/{VOTE_KEY}"))
    if not found:
        raise UserError(
            f"{path} has no keys of a client: name the folder with its {VOTE_KEY} and {FEDERATION}"
        )
    federations = {folder: read_federation(folder / FEDERATION) for folder in found}
    federation = federations[found[0]]
    for folder, other in federations.items():
        if other.text != federation.text:
            raise UserError(
                f"{folder} and {found[0]} are of two federations: a node hosts clients of one"
            )
    assert federation.network is not None
    if federation.network.follows:
        raise UserError(
            f"the federation of {path} was changed since it was founded: its clients go on by `fedrfq client`"
        )
    pairs = {folder: _signer(folder, federation) for folder in found}
    folders = tuple(folder for folder, (client, _) in pairs.items() if client >= 0)
    signers = dict(sorted((pairs[folder] for folder in folders), key=lambda pair: pair[0]))
    if not signers:
        raise UserError(
            f"{path} is of no client: nodes host clients, servers run by `fedrfq server`"
        )
    return Trust(
        experiment_of(federation.network.experiment), tuple(signers), federation, signers, folders
    )


def _signer(folder: Path, federation: Federation) -> tuple[int, Ed25519Signer]:
    """A client with its key; −1 is a server or a courier."""
    signer = read_signer(folder)
    if signer.public in federation.servers + federation.couriers:
        return -1, signer
    if signer.public not in federation.clients:
        raise UserError(
            f"the key in {folder / VOTE_KEY} is none of {FEDERATION}'s: copy the one that knows it"
        )
    if (folder / LOG).exists():
        raise UserError(
            f"{folder} has taken part by `fedrfq client`: go on so, or it might sign two uploads of one round"
        )
    return federation.clients.index(signer.public), signer
