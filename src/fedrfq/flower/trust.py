"""Whose keys a node has, and which results it believes.

The keys come from the experiment's seed, as its simulated committee's do, or lie in the folders of
a real federation's clients. The server app has none of them: it can neither sign for a client nor
make up what a committee decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedrfq.committee import Simulated
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    OUTCOME,
    Cert,
    Kind,
    Message,
    Part,
    PartKind,
    Upload,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table, name_of
from fedrfq.federation import codec, round_log, signatures
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.public_task import PublicTask
from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.files import toml
from fedrfq.flower.messages import MAX_CLIENTS
from fedrfq.learning.public.exchange import public_task
from fedrfq.learning.round_loop import committee_settings
from fedrfq.methods import METHODS
from fedrfq.node.hosting import HOSTED
from fedrfq.node.membership.identity import read_federation, read_signer
from fedrfq.node.storage.log_reader import FOLDER as LOG
from fedrfq.node.storage.party_folder import FEDERATION, VOTE_KEY
from fedrfq.prototypes.fixed_point import Globals


@dataclass(frozen=True)
class Result:
    """What was decided in a round: the global prototypes, and whose uploads have a verdict.

    `public` are the statistics on the public feature map, if there are any yet, and `public_part`
    are their bytes.
    """

    globals_: Globals
    judged: frozenset[int] = frozenset()
    public: Globals | None = None
    public_part: bytes = b""


@dataclass(frozen=True)
class Trust:
    """The clients that a node speaks for, ascending, and the federation that it believes.

    Where nothing is exchanged there is no federation, and then there are no keys either.
    """

    experiment: Experiment
    clients: tuple[int, ...]
    federation: Federation | None
    signers: Mapping[int, Ed25519Signer]
    folders: tuple[Path, ...] = ()  # where the clients' keys lie, if not simulated

    @property
    def run(self) -> str:
        """The federation's run id in hex; empty where nothing is exchanged."""
        if self.federation is None:
            return ""
        return self.federation.roster.run.hex()

    @cached_property
    def _rules(self) -> Rules:
        assert self.federation is not None
        return Rules(self.federation.roster)

    def signed(self, client: int, round_: int, content: bytes) -> bytes:
        """Return the client's signed upload as it goes over the wire."""
        return self._rules.signed(Upload(round_, client, content), self.signers[client]).wire

    def verified(self, round_: int, last: bytes, public: bytes = b"") -> Result:
        """Return the result in `last`; raise a UserError unless this federation certified it.

        `public` is the public part of an earlier round; it counts where `last` has none.
        """
        if self.federation is None or round_ == 0:
            return self._nothing_decided(round_, last)
        task = self.federation.task
        try:
            outcome = self._certified(round_, last, public)
            judged = frozenset(codec.decode_verdicts(outcome.verdicts, task.classes)[0])
            globals_ = codec.decode_globals(outcome.globals_, task.classes, task.values)
            statistics = codec.decode_public(outcome.public, task.public)
            return Result(globals_, judged, statistics, outcome.public)
        except Refused as error:
            raise UserError(
                f"the result of round {round_} is refused, since this federation did not certify "
                f"it: {error}"
            ) from error

    def _nothing_decided(self, round_: int, last: bytes) -> Result:
        """Return the result before the first round, or where nothing is exchanged."""
        if last:
            raise UserError(f"a result of round {round_} is refused: that round has no result")
        if self.federation is None:
            return Result(Globals.none(0, 0))
        task = self.federation.task
        return Result(Globals.none(task.classes, task.values))

    def _certified(self, round_: int, last: bytes, public: bytes) -> Outcome:
        """Return the outcome that the servers certified, without the detector's state."""
        messages = [placed.message for placed in round_log.unpack(last)]
        cert = messages[0].body if messages else None
        if not isinstance(cert, Cert):
            raise Refused("it does not begin with a certificate")
        if not all(map(self._rules.of_run, messages)):
            raise Refused("it belongs to another run")
        record = cert.certificate.record
        if record.round != round_:
            raise Refused(f"its certificate is of round {record.round}")
        if not self._rules.certifies(cert.certificate, Kind.COMMIT):
            raise Refused("its certificate does not have enough servers' signatures")
        if record.ends_run():
            raise UserError(
                f"the federation was changed in round {round_}: remove {HOSTED} from the "
                "clients' folders and run them with `fedrfq client`"
            )
        digests = {
            PartKind.GLOBALS: record.globals_,
            PartKind.VERDICTS: record.verdicts,
            PartKind.PUBLIC: record.public,
        }
        sent = _contents(messages[1:])
        contents = {PartKind.PUBLIC: public, **sent}
        # The signatures cover the digests alone.
        for kind, digest in digests.items():
            if part_digest(kind, contents[kind]) == digest:
                continue
            if kind not in sent:
                # The server app sends them to whoever refuses a result.
                raise UserError(
                    f"the result of round {round_} is refused: it came without the public "
                    "statistics, and those that this node has kept are not its"
                )
            raise Refused("its content is not what was certified")
        return Outcome(*(contents.get(kind, b"") for kind in OUTCOME))


def _contents(messages: list[Message]) -> dict[PartKind, bytes]:
    """Return GLOBALS, VERDICTS and, where there are public statistics, PUBLIC, in this order."""
    bodies = [message.body for message in messages]
    parts = [body for body in bodies if isinstance(body, Part)]
    kinds = [part.what for part in parts]
    expected = [PartKind.GLOBALS, PartKind.VERDICTS, PartKind.PUBLIC]
    if len(parts) != len(messages) or kinds not in (expected, expected[:-1]):
        found = ", ".join(kind.name for kind in kinds) or "no part"
        raise Refused(f"it has {found} in {len(messages)} messages after its certificate")
    return {part.what: part.content for part in parts}


# Simulated federations


def experiment_of(text: str) -> Experiment:
    """Return the experiment that the server app sent; raise a UserError if it is invalid."""
    try:
        table = toml.strict(text)
        clients = table.get("clients")
        # Checked first, since reading the experiment goes through all of its clients.
        if isinstance(clients, int) and clients > MAX_CLIENTS:
            raise ValueError(f"it has {clients} clients, but at most {MAX_CLIENTS} can be hosted")
        return from_table(table)
    except (ValueError, OverflowError) as error:
        raise UserError(f"cannot read the experiment that the server app sent: {error}") from error


def simulated(experiment: Experiment, clients: range, classes: int) -> Trust:
    """Return the trust of a node whose committee is simulated, or that exchanges nothing."""
    if experiment.method.centres:
        name = name_of(METHODS, experiment.method)
        raise UserError(
            f"'{name}' averages models, which no committee can certify: use `fedrfq run`"
        )
    if not experiment.method.exchanges and not experiment.public.used:
        return Trust(experiment, tuple(clients), None, {})
    if not isinstance(experiment.committee, Simulated):
        raise UserError(
            "nodes accept only certified results, but this experiment has no committee: "
            'set committee.name = "simulated"'
        )
    federation = experiment.committee.federation(committee_settings(experiment, classes))
    signers = {
        client: signatures.simulated(experiment.seed, "client", client) for client in clients
    }
    return Trust(experiment, tuple(clients), federation, signers)


# Real federations


def of_folders(path: Path) -> Trust:
    """Return the trust of the client whose folder this is, or of all whose folders it holds."""
    if (path / VOTE_KEY).exists():
        folders = [path]
    else:
        folders = sorted(key.parent for key in path.glob(f"*/{VOTE_KEY}"))
    if not folders:
        raise UserError(
            f"{path} has no keys of a client: name the folder with its {VOTE_KEY} and {FEDERATION}"
        )
    federation = _common_federation(folders)
    assert federation.network is not None
    if federation.network.follows:
        raise UserError(
            f"the federation of {path} was changed since it was founded: "
            "run its clients with `fedrfq client`"
        )
    signers: dict[int, Ed25519Signer] = {}
    hosted = []
    for folder in folders:
        signer = read_signer(folder)
        client = _client_of(folder, signer, federation)
        if client is not None:
            signers[client] = signer
            hosted.append(folder)
    if not signers:
        raise UserError(
            f"{path} holds no client's keys: nodes host clients; run servers with `fedrfq server`"
        )
    clients = tuple(sorted(signers))
    experiment = experiment_of(federation.network.experiment)
    _check_map(experiment, federation)
    ordered = {client: signers[client] for client in clients}
    return Trust(experiment, clients, federation, ordered, tuple(hosted))


def _check_map(experiment: Experiment, federation: Federation) -> None:
    """Raise a UserError unless the experiment's public map is that of the federation."""
    task = federation.task
    expected = task.public
    found = public_task(experiment.public, task.classes, experiment.privacy)
    if found != expected:
        raise UserError(
            f"{FEDERATION} states public statistics of {_described(expected)}, but the experiment "
            f"in it makes {_described(found)}: install the version of fedrfq that founded it"
        )


def _described(task: PublicTask | None) -> str:
    if task is None:
        return "no map"
    noise = 0.0
    if task.privacy is not None:
        noise = task.privacy.noise
    form = f"{task.rows} × {task.values} values, norm {task.norm:g}, noise {noise:g}"
    return f"the map {task.map} ({form})"


def _common_federation(folders: list[Path]) -> Federation:
    """Return the federation of all these folders; raise a UserError if there are several."""
    federations = {folder: read_federation(folder / FEDERATION) for folder in folders}
    first = federations[folders[0]]
    for folder, federation in federations.items():
        if federation.text != first.text:
            raise UserError(
                f"{folder} and {folders[0]} belong to two federations: "
                "a node hosts clients of only one"
            )
    return first


def _client_of(folder: Path, signer: Ed25519Signer, federation: Federation) -> int | None:
    """Return the number of the client with this key; None for a server or a courier."""
    if signer.public in federation.servers + federation.couriers:
        return None
    if signer.public not in federation.clients:
        raise UserError(
            f"the key in {folder / VOTE_KEY} is not in {FEDERATION}: "
            f"copy the {FEDERATION} that lists it"
        )
    if (folder / LOG).exists():
        raise UserError(
            f"{folder} has taken part with `fedrfq client`: continue with that, since otherwise "
            "it might sign two uploads of one round"
        )
    return federation.clients.index(signer.public)
