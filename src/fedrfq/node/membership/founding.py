"""Founding a federation: parties' requests and an experiment become the federation.toml that all share.

Whoever founds holds nobody's secrets: the same requests and settings give everyone the same file. Parties whose keys are made
here (`Keys`) go the same way.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import Federation, Timings, experiment_digest
from fedrfq.federation.members import ROLES, Member, Members
from fedrfq.federation.signatures import KEY, Ed25519Signer
from fedrfq.files import toml
from fedrfq.node.membership import certificates
from fedrfq.node.membership.request import MOST, Request
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


@dataclass(frozen=True)
class NewKeys:
    """A new party's secrets, and what it makes known."""

    seed: bytes
    tls_key: bytes  # as PEM
    request: Request

    @staticmethod
    def new(
        name: str, address: str = "", days: int = certificates.DAYS, courier: bool = False
    ) -> NewKeys:
        """`address` is a server's, host:port; clients and couriers have none."""
        Request(
            Member(name, address, b"-"), b"", courier=courier
        )  # refused before anything is made of it
        seed = secrets.token_bytes(KEY)
        (tls_key, der) = certificates.make(name, days)
        signer = Ed25519Signer(seed)
        return NewKeys(
            seed,
            tls_key,
            Request(Member(name, address, der), signer.public, courier=courier).signed(signer),
        )

    def write(self, folder: Path) -> None:
        """The folder of the party, which nobody else may enter."""
        refuse_existing([folder / name for name in (VOTE_KEY, TLS_KEY, TLS_CERTIFICATE, REQUEST)])
        make_folder(folder, 0o700)
        write(folder / VOTE_KEY, self.seed.hex().encode() + b"\n", 0o600)
        write(folder / TLS_KEY, self.tls_key, 0o600)
        write(folder / TLS_CERTIFICATE, certificates.pem(self.request.member.certificate).encode())
        write(folder / REQUEST, self.request.text.encode())


@dataclass(frozen=True)
class FoundingPurpose:
    """What a federation is founded for: the experiment, as TOML, and what it asks of the committee."""

    experiment: str
    task: Task


def purpose(
    servers: int, clients: int | None = None, file: Path | None = None, sets: Sequence[str] = ()
) -> FoundingPurpose:
    """Of an experiment's file (or the default one) with `--set`s applied, for so many parties; as many clients as it says
    unless given. Its committee becomes one of that size and honest: `fedrfq run` then simulates what the real one does.
    Needs PyTorch."""
    from fedrfq import experiment
    from fedrfq.committee import Simulated
    from fedrfq.data import DATASETS, load
    from fedrfq.learning.round_loop import mandate

    found = replace(experiment.load(file, sets, clients=clients), committee=Simulated(servers))
    known = DATASETS.get(found.data.name) or load(found.data.name)
    return FoundingPurpose(toml.dump(found.table()), mandate(found, len(known.classes)).task)


def federation(
    purpose: FoundingPurpose, requests: Sequence[Request], timings: Timings, follows: str = ""
) -> Federation:
    """The federation of these parties, each kind in the order of their names, numbers in them as numbers."""
    for request in requests:
        request.check()
    ordered = sorted(
        requests, key=lambda request: (ROLES.index(request.role), _natural(request.member.name))
    )
    servers, clients, couriers = (tuple(r.key for r in ordered if r.role == role) for role in ROLES)
    if len(clients) != purpose.task.clients:
        raise UserError(
            f"the experiment has {purpose.task.clients} clients, and {len(clients)} ask to take part"
        )
    network = Members(follows, purpose.experiment, tuple(request.member for request in ordered))
    digest = experiment_digest(toml.strict(purpose.experiment))
    made = Federation(digest, timings, purpose.task, servers, clients, network, couriers)
    return Federation.read(made.text, FEDERATION)


def found(folder: Path, federation: Federation, made: Sequence[NewKeys]) -> None:
    """Write the federation's file, and a folder for each party whose keys were made here."""
    own = {folder / keys.request.member.name: keys for keys in made}
    refuse_existing([folder / FEDERATION, *own])
    make_folder(folder)
    for party, keys in own.items():
        keys.write(party)
        write(party / FEDERATION, federation.text.encode())
    write(folder / FEDERATION, federation.text.encode())


def init(
    folder: Path,
    addresses: Sequence[str],
    clients: int | None = None,
    waits: Mapping[str, int | None] | None = None,
    file: Path | None = None,
    sets: Sequence[str] = (),
    days: int = certificates.DAYS,
    couriers: int = 0,
) -> Federation:
    """Found a federation of the parties that asked (`requests`), and of servers server-0, … at these addresses, clients
    client-0, … and couriers courier-0, … with keys made here. Without `clients`, as many as the experiment has, or as have
    asked. `waits` are fields of `Timings`; a round needs more than half of the clients unless they say otherwise."""
    asked = requests(folder)
    servers, waiting, _ = (sum(request.role == role for request in asked) for role in ROLES)
    if waiting or clients is not None:
        total = waiting + (clients or 0)
    else:
        total = None
    aim = purpose(servers + len(addresses), total, file, sets)
    given = {key: value for key, value in (waits or {}).items() if value is not None}
    timings = Timings(**{"minimum": aim.task.clients // 2 + 1, **given})
    made = [NewKeys.new(f"server-{k}", address, days) for k, address in enumerate(addresses)]
    made += [NewKeys.new(f"client-{k}", days=days) for k in range(aim.task.clients - waiting)]
    made += [NewKeys.new(f"courier-{k}", days=days, courier=True) for k in range(couriers)]
    agreed = federation(aim, [*asked, *(keys.request for keys in made)], timings)
    found(folder, agreed, made)
    return agreed


def add(folder: Path, files: Sequence[Path]) -> list[Request]:
    """Take requests among those that the federation of this folder will be founded of; returns all there are now."""
    if (folder / FEDERATION).exists():
        raise UserError(f"{folder / FEDERATION} exists: the federation is founded")
    new = [read_request(file) for file in files]
    there = requests(folder)
    Members(
        "", "", tuple(request.member for request in [*there, *new])
    )  # refuses what two have in common
    if len({request.key for request in [*there, *new]}) < len(there) + len(new):
        raise UserError("two parties have the same key: each needs its own")
    make_folder(folder / REQUESTS)
    for request in new:
        write(folder / REQUESTS / f"{request.member.name}.toml", request.text.encode())
    return [*there, *new]


def requests(folder: Path) -> list[Request]:
    """Those that were added."""
    return [read_request(path) for path in sorted((folder / REQUESTS).glob("*.toml"))]


def read_request(path: Path) -> Request:
    return Request.read(read_text(path, MOST), str(path))


def _natural(name: str) -> list[tuple[str, int]]:
    """server-2 comes before server-10."""
    return [
        (letters, int(digits or 0)) for letters, digits in re.findall(r"([^0-9]*)([0-9]*)", name)
    ]
