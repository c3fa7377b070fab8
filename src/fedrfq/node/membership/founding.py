"""Founding a federation: requests and an experiment become the federation.toml that all share.

Whoever founds a federation holds nobody's secrets: the same requests and settings give everyone the
same file. Parties whose keys are made here (`NewKeys`) send a request like everyone else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.data.contract import CONTRACT, Contract, listed
from fedrfq.errors import UserError
from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import Federation, Timings, experiment_digest
from fedrfq.federation.members import ROLES, Member, Members
from fedrfq.federation.signatures import KEY, Ed25519Signer
from fedrfq.files import toml
from fedrfq.node.membership import certificates
from fedrfq.node.membership.request import MAX_REQUEST_BYTES, Request
from fedrfq.node.storage.party_folder import (
    FEDERATION,
    REQUEST,
    REQUESTS,
    TLS_CERTIFICATE,
    TLS_KEY,
    VOTE_KEY,
    make_folder,
    read_text,
    refuse_existing,
    write,
)

# The detector of a federation whose experiment names none: an open federation needs one.
DEFAULT_DETECTOR = "adaptive"
if TYPE_CHECKING:
    from fedrfq.node.membership.contract_choice import ContractChoice

# What an experiment says of data that a contract describes: where they are is nobody's business.
_OF_CONTRACT = (
    f"data.name={CONTRACT}",
    'data.shape=""',
    'data.window=""',
    "data.resize=false",
    "data.recolour=false",
)
# What only the owner may read, write or enter.
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


@dataclass(frozen=True)
class NewKeys:
    """The secrets of a new party, and its request; the TLS key is in PEM form."""

    seed: bytes
    tls_key: bytes
    request: Request

    @staticmethod
    def new(
        name: str, address: str = "", days: int = certificates.DEFAULT_DAYS, courier: bool = False
    ) -> NewKeys:
        """Make keys; `address` is a server's HOST:PORT, and empty for a client or courier."""
        # Refuse a bad name or address before any key is made.
        Request(Member(name, address, b"-"), b"", courier=courier)
        seed = secrets.token_bytes(KEY)
        tls_key, certificate = certificates.make(name, timedelta(days=days))
        signer = Ed25519Signer(seed)
        member = Member(name, address, certificate)
        request = Request(member, signer.public, courier=courier).signed(signer)
        return NewKeys(seed, tls_key, request)

    def write(self, folder: Path) -> None:
        """Write the keys and the request to the party's folder, which nobody else may enter."""
        refuse_existing([folder / name for name in (VOTE_KEY, TLS_KEY, TLS_CERTIFICATE, REQUEST)])
        make_folder(folder, _PRIVATE_FOLDER)
        write(folder / VOTE_KEY, self.seed.hex().encode() + b"\n", _PRIVATE_FILE)
        write(folder / TLS_KEY, self.tls_key, _PRIVATE_FILE)
        write(folder / TLS_CERTIFICATE, certificates.pem(self.request.member.certificate).encode())
        write(folder / REQUEST, self.request.text.encode())


@dataclass(frozen=True)
class FoundingPurpose:
    """What a federation is founded for: the experiment, as TOML, and the task of its committee.

    The contract says what clients' samples must be; None where they deal a known dataset.
    """

    experiment: str
    task: Task
    contract: Contract | None = None


def purpose(
    servers: int,
    clients: int | None = None,
    file: Path | None = None,
    sets: Sequence[str] = (),
    choice: ContractChoice | None = None,
) -> FoundingPurpose:
    """Return the purpose that an experiment's file, or the default experiment, describes.

    `sets` are applied to it, and `clients` overrides the number of clients. Its committee becomes
    an honest one of that many servers, so `fedrfq run` simulates what the real one does. With a
    data contract, the experiment names nobody's data. This needs PyTorch.
    """
    from fedrfq import experiment
    from fedrfq.committee import Simulated
    from fedrfq.data import DATASETS
    from fedrfq.learning.round_loop import committee_settings
    from fedrfq.node.membership.contract_choice import ContractChoice, check_images

    chosen = experiment.load(file, sets, clients=clients)
    chosen.check_untracked(
        "the parties of a federation keep histories of their own, which `fedrfq watch` shows"
    )
    chosen.check_privacy()
    contract = (choice or ContractChoice()).contract(chosen)
    if contract is not None:
        chosen = experiment.load(file, [*sets, *_OF_CONTRACT], clients=clients)
        check_images(chosen, contract)
        classes = contract.classes
    else:
        classes = DATASETS[chosen.data.name].classes
    chosen = replace(chosen, committee=Simulated(servers))
    if chosen.method.centres:
        raise UserError(
            "clients of a federation keep their models, and the experiment's method averages them:"
            " use `fedrfq run`, or another method"
        )
    task = committee_settings(chosen, len(classes)).task
    return FoundingPurpose(toml.dump(chosen.table()), task, contract)


def detector_settings(file: Path | None, sets: Sequence[str], chosen: str | None) -> list[str]:
    """Return the settings that make `chosen` the detector of an experiment.

    If it is None, the experiment's own detector stays, or the default is set where it names none.
    """
    named: toml.Table = {}
    if file is not None:
        named = toml.read(file)
    for assignment in sets:
        named = toml.assign(named, assignment)
    section = named.get("detector")
    if chosen is None and not (isinstance(section, Mapping) and "name" in section):
        chosen = DEFAULT_DETECTOR
    if chosen is None:
        return []
    return [f"detector.name={chosen}"]


def federation(
    purpose: FoundingPurpose,
    requests: Sequence[Request],
    timings: Timings,
    follows: str = "",
    pause_s: int = 0,
) -> Federation:
    """Return the federation of these parties, each role in the order of names.

    The order decides the numbers of the parties, so it must not depend on that of the requests.
    """
    for request in requests:
        request.check()
    ordered = sorted(
        requests, key=lambda request: (ROLES.index(request.role), _natural(request.member.name))
    )
    servers, clients, couriers = (tuple(r.key for r in ordered if r.role == role) for role in ROLES)
    if len(clients) != purpose.task.clients:
        raise UserError(
            f"the experiment has {purpose.task.clients} clients, and {len(clients)} ask to take "
            "part: change `clients` in the experiment, or add requests"
        )
    network = Members(follows, purpose.experiment, tuple(request.member for request in ordered))
    digest = experiment_digest(toml.strict(purpose.experiment))
    new = Federation(
        digest,
        timings,
        purpose.task,
        servers,
        clients,
        network,
        couriers,
        contract=purpose.contract,
        pause_s=pause_s,
    )
    # Reading it back makes the checks that every party will make.
    return Federation.read(new.text, FEDERATION)


def found(folder: Path, federation: Federation, made: Sequence[NewKeys]) -> None:
    """Write the federation's file, and a folder for each party whose keys were made here."""
    folders = {folder / keys.request.member.name: keys for keys in made}
    # Before the first is written, so that a conflict leaves nothing behind.
    if (folder / FEDERATION).exists():
        raise UserError(
            f"{folder / FEDERATION} exists, so this federation is founded: before its first round,"
            " remove the file and found it anew; later, use `fedrfq committee change`"
        )
    refuse_existing(folders)
    make_folder(folder)
    for party_folder, keys in folders.items():
        keys.write(party_folder)
        write(party_folder / FEDERATION, federation.text.encode())
    # Last, because it marks the federation as founded.
    write(folder / FEDERATION, federation.text.encode())


def init(
    folder: Path,
    addresses: Sequence[str],
    clients: int | None = None,
    timings: Mapping[str, int | None] | None = None,
    *,
    file: Path | None = None,
    sets: Sequence[str] = (),
    days: int = certificates.DEFAULT_DAYS,
    couriers: int = 0,
    choice: ContractChoice | None = None,
    pause_s: int = 0,
) -> Federation:
    """Found a federation in this folder, of the parties that asked and of parties made here.

    Made here are server-0, … at these addresses, and so many clients client-0, … and couriers
    courier-0, …. Without `clients`, as many clients are made as the experiment has, or none if
    clients have asked. `timings` are fields of `Timings`, or None for the default; a round needs
    more than half of the clients unless they say otherwise; its deadline must come after the
    pause. `choice` is what the founder says of clients' data.
    """
    asked = requests(folder)
    _check_asked(asked, len(addresses), clients)
    asking_servers = sum(request.role == "server" for request in asked)
    asking_clients = sum(request.role == "client" for request in asked)
    # None leaves the number to the experiment.
    total_clients = None
    if asking_clients or clients is not None:
        total_clients = asking_clients + (clients or 0)
    aim = purpose(asking_servers + len(addresses), total_clients, file, sets, choice)
    given = {key: value for key, value in (timings or {}).items() if value is not None}
    made = [NewKeys.new(f"server-{k}", address, days) for k, address in enumerate(addresses)]
    for k in range(aim.task.clients - asking_clients):
        made.append(NewKeys.new(f"client-{k}", days=days))
    for k in range(couriers):
        made.append(NewKeys.new(f"courier-{k}", days=days, courier=True))
    agreed = federation(
        aim,
        [*asked, *(keys.request for keys in made)],
        Timings(**{"minimum": aim.task.clients // 2 + 1, **given}),
        pause_s=pause_s,
    )
    found(folder, agreed, made)
    return agreed


def _check_asked(asked: Sequence[Request], servers: int, clients: int | None) -> None:
    """Refuse to found a federation while parties that were to ask have not.

    `servers` and `clients` are how many are to be made here, whose secrets the founder would hold.
    """
    if not asked:
        return
    names = {
        role: [request.member.name for request in asked if request.role == role] for role in ROLES
    }
    so_far = "; ".join(f"{role}s {listed(named)}" for role, named in names.items() if named)
    if clients is None and not names["client"]:
        raise UserError(
            f"no client has asked to take part yet, only the {so_far}: wait until all have, or give"
            " --clients to make keys of clients here"
        )
    total = len(names["server"]) + servers
    if total in (0, 2, 3):
        raise UserError(
            f"a committee needs 1 server, or 4 and more, and {total or 'none'} would be in it; so"
            f" far these have asked: {so_far}; wait until all have, or give --servers to make keys"
            " of servers here"
        )


def add(folder: Path, files: Sequence[Path]) -> list[Request]:
    """Add requests to those of which this folder's federation will be founded; return them all."""
    if (folder / FEDERATION).exists():
        raise UserError(
            f"the federation of {folder} is founded already: "
            "change it with `fedrfq committee change`"
        )
    new = [read_request(file) for file in files]
    all_requests = [*requests(folder), *new]
    # Refuses parties that share a name, an address or a certificate.
    Members("", "", tuple(request.member for request in all_requests))
    if len({request.key for request in all_requests}) < len(all_requests):
        raise UserError("two parties have the same key: each needs its own, from `fedrfq keys new`")
    # All have been checked by now: either all of the new requests are added, or none.
    make_folder(folder / REQUESTS)
    for request in new:
        write(folder / REQUESTS / f"{request.member.name}.toml", request.text.encode())
    return all_requests


def requests(folder: Path) -> list[Request]:
    """Return the requests that were added to this folder's federation."""
    return [read_request(path) for path in sorted((folder / REQUESTS).glob("*.toml"))]


def read_request(path: Path) -> Request:
    """Read and check the request in a file."""
    return Request.read(read_text(path, MAX_REQUEST_BYTES), str(path))


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a key to sort names by their numbers, so that server-2 comes before server-10."""
    parts = re.findall(r"([^0-9]*)([0-9]*)", name)
    return [(letters, int(digits or 0)) for letters, digits in parts]
