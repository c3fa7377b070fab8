"""Joining a federation that is yet to be founded, by a folder that all its parties can reach.

Each party puts its request there, and the founder the federation.toml. Nobody trusts the folder: a
party takes the file only from somebody who knows the run's id by another way, such as a telephone.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from fedrfq.data.contract import listed
from fedrfq.errors import UserError
from fedrfq.federation import decisions
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.members import ROLES
from fedrfq.files.atomic import write_atomically
from fedrfq.files.regular import check_folder
from fedrfq.node.membership import refounding
from fedrfq.node.membership.founding import NewKeys, read_request
from fedrfq.node.membership.identity import (
    Identity,
    identify,
    read_federation,
    read_signer,
)
from fedrfq.node.membership.request import Request
from fedrfq.node.storage.party_folder import FEDERATION, REQUEST, REQUESTS, make_folder, write

# Digits of the id that a party must be told, in hex: as many as an OpenPGP fingerprint has. Who
# founds a federation could find two files that have fewer digits in common.
LEAST_DIGITS = 40
_LOOK_EVERY_S = 1.0


def ask(folder: Path, shared: Path, address: str = "") -> Request:
    """Put this party's request into the shared folder; its keys are made unless it has some.

    The party is called like its folder. Asking again changes nothing but a server's address.
    """
    if not shared.is_dir():
        raise UserError(f"{shared} is no folder: name the one that all parties share")
    name = folder.absolute().name
    if not (folder / REQUEST).exists():
        NewKeys.new(name, address).write(folder)
    request = read_request(folder / REQUEST)
    if bool(request.member.address) != bool(address):
        raise UserError(
            f"{folder} has the keys of a {request.role}: use `fedrfq {request.role}`, or choose"
            " another folder"
        )
    if request.member.address != address:
        request = replace(request, member=replace(request.member, address=address))
        request = request.signed(read_signer(folder))
        write_atomically(folder / REQUEST, request.text.encode())
    _put(request, shared)
    return request


def _put(request: Request, shared: Path) -> None:
    requests = shared / REQUESTS
    if not requests.exists():
        make_folder(requests)
        # Whoever may write to the shared folder may ask.
        requests.chmod(stat.S_IMODE(shared.stat().st_mode))
    check_folder(requests)
    path = requests / f"{request.member.name}.toml"
    if not path.exists():
        write(path, request.text.encode())
        return
    there = read_request(path)
    if there.key != request.key:
        raise UserError(
            f"{path} is the request of another party, which has the same name: choose another one,"
            " which is the name of your folder"
        )
    if there != request:
        write_atomically(path, request.text.encode())


def await_federation(folder: Path, shared: Path) -> Identity:
    """Wait until the federation is founded; return who this party is in it.

    Nothing is written yet, because nobody has agreed to it.
    """
    path = shared / FEDERATION
    before = None
    # It may be on its way still: it counts when it has not changed from one look to the next.
    while (now := _look(path)) is None or now != before:
        before = now
        time.sleep(_LOOK_EVERY_S)
    federation = read_federation(path)
    if read_signer(folder).public not in federation.keys.values():
        raise UserError(
            f"{path} was founded without the keys of {folder}: before anybody agrees to it, have it"
            " removed and founded anew; later its servers add you, with `fedrfq committee change`"
        )
    identity = identify(folder, federation)
    if identity.is_server:
        decisions.check_server(federation.decisions, str(path))
    return identity


def _look(path: Path) -> tuple[int, int] | None:
    """Return a file's size and time, or None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def terms(federation: Federation) -> Iterator[str]:
    """Yield what a party agrees to, a line each; not the id, which must come from the others."""
    yield from members(federation)
    if federation.contract is not None:
        yield f"data contract: {federation.contract.about()}"
    yield f"detector: {federation.detector}, by version {federation.decisions} of the decisions"
    timings = federation.timings
    pause_s = federation.pause_s
    yield (
        f"a round needs {timings.minimum} of the clients, and waits"
        f" {timings.deadline_ms / 1000 - pause_s:g} s for the others"
    )
    if pause_s:
        yield f"between two rounds clients pause for {timedelta(seconds=pause_s)}"


def members(federation: Federation) -> Iterator[str]:
    """Yield the names of the members, a line for each role."""
    for role in ROLES:
        found = federation.members.items()
        names = [member.name for party, member in found if federation.role(party) == role]
        if names:
            yield f"{role}s: {listed(names)}"


def agree(identity: Identity, told: str, shared: Path) -> None:
    """Take the federation's file into the party's folder, if its id is the one that was told."""
    if not _is_id_of(identity.federation, told):
        if read_federation(shared / FEDERATION) != identity.federation:
            raise UserError(
                f"{shared / FEDERATION} has been replaced since it was shown here: start again, and"
                " look at the new one before you type its id"
            )
        raise UserError(
            f"this is not the id of the {FEDERATION} here. If you mistyped it, start again."
            " Otherwise somebody has another file, or gave you another one: do not go on"
        )
    refounding.take_back(identity.folder, identity.federation)
    write_atomically(identity.folder / FEDERATION, identity.federation.text.encode())


def _is_id_of(federation: Federation, told: str) -> bool:
    digits = "".join(told.split()).lower()
    return len(digits) >= LEAST_DIGITS and federation.roster.run.hex().startswith(digits)


def spoken(federation: Federation) -> str:
    """Return as much of the run's id as must be told, in groups of four digits."""
    digits = federation.roster.run.hex()[:LEAST_DIGITS]
    return " ".join(digits[start : start + 4] for start in range(0, LEAST_DIGITS, 4))
