"""A party's folder over the runs of its federation: each change of federation.toml begins a new run, and the old are kept.

past/1, past/2, … hold what the runs that are over left, in order: federation.toml, audit.log, bodies.bin, log/, and last.bin:
the last certificate with the outcome it certifies, of which the next federation.toml is a part. Whoever trusts the first
federation.toml can follow to the present one by these alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Cert, Certificate, Kind, Part, PartKind, part_digest
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation import codec, round_log
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import MOST, inherited_by, read_successor
from fedrfq.files import toml
from fedrfq.files.atomic import write_atomically
from fedrfq.node.membership import certificates
from fedrfq.node.membership.identity import Identity, read_federation, read_signer
from fedrfq.node.storage.party_folder import FEDERATION, TLS_CERTIFICATE, TLS_KEY, VOTE_KEY

NEXT = "federation.next.toml"
LAST = "last.bin"
PAST = "past"
ROTATION = "rotation"
_KEPT = (
    "log",
    "log.damaged-*",
    "audit.log*",
    "bodies.bin*",
    "proposal.toml",
    LAST,
    FEDERATION,
)  # the last ends it
KEYS = (VOTE_KEY, TLS_KEY, TLS_CERTIFICATE)
_LONGEST = 1 << 28  # bytes of a last.bin


@dataclass(frozen=True)
class EndedEpoch:
    """A run that is over: how it ended."""

    federation: Federation
    certificate: Certificate
    outcome: Outcome


def activate_successor(folder: Path, last: bytes, successor: bytes) -> None:
    """The run is over with these bytes (`journal.packed`): put its files aside, and go on with its successor's."""
    write_atomically(folder / LAST, last)
    write_atomically(folder / NEXT, successor)
    complete_activation(folder)


def complete_activation(folder: Path) -> None:
    """Finish a turn that was begun, if one was: whatever a crash left of it, the same comes out."""
    if not (folder / NEXT).exists():
        return
    past = _unfinished(folder)
    _check_turn(folder, past)
    past.mkdir(parents=True, exist_ok=True)
    for pattern in _KEPT:
        for path in sorted(folder.glob(pattern)):
            path.rename(past / path.name)
    _rotate(folder, past)
    _sync(past)
    (folder / NEXT).rename(folder / FEDERATION)
    _sync(folder)


def _check_turn(folder: Path, past: Path) -> None:
    """That the run is over, and the next one is what its last certificate says; each file may have been moved already."""
    if (past / FEDERATION).exists():
        home = past
    else:
        home = folder
    if (past / LAST).exists():
        last = past
    else:
        last = folder
    if codec.successor_in(_ended(home / FEDERATION, last / LAST).outcome.verdicts) != _bounded(
        folder / NEXT, MOST
    ):
        raise UserError(f"{folder / NEXT} is not what {last / LAST} certifies: move it away")


def _unfinished(folder: Path) -> Path:
    """Where a turn that was begun puts things: in the last place, unless that is another run's."""
    latest = max(_numbers(folder), default=0)
    mine = latest and (
        not (folder / FEDERATION).exists()
        or not (folder / PAST / str(latest) / FEDERATION).exists()
    )
    return folder / PAST / str(latest if mine else latest + 1)


def takes_part(identity: Identity, successor: bytes) -> bool:
    """Whether the party takes part in the next run, with the keys it has or with those made for a rotation."""
    new = Federation.read(successor.decode(), NEXT)
    own = {identity.signer.public}
    if (identity.folder / ROTATION).is_dir():
        own.add(read_signer(identity.folder / ROTATION).public)
    return not own.isdisjoint(new.keys.values())


def _rotate(folder: Path, past: Path) -> None:
    """Keys made for the new federation take the old ones' place."""
    rotation = folder / ROTATION
    if not _seated(rotation, (folder / NEXT).read_bytes()):
        return
    for name in KEYS:
        if (rotation / name).exists():
            if (folder / name).exists() and not (past / name).exists():
                (folder / name).rename(past / name)
            (rotation / name).rename(folder / name)
    for rest in rotation.iterdir():
        rest.rename(past / rest.name)
    rotation.rmdir()


def _seated(rotation: Path, successor: bytes) -> bool:
    """Whether the certificate made for a rotation is one of the new federation's."""
    certificate = rotation / TLS_CERTIFICATE
    if not rotation.is_dir():
        return False
    if not certificate.exists():  # it is moved last; or a rotation was never made to its end
        certificate = rotation.parent / TLS_CERTIFICATE
        if any((rotation / name).exists() for name in KEYS):
            return False
    return certificates.read(certificate) in Federation.read(successor.decode(), NEXT).holders


def _numbers(folder: Path) -> list[int]:
    past = folder / PAST
    if past.is_dir():
        return sorted(int(path.name) for path in past.iterdir() if path.name.isdecimal())
    return []


def ended_epochs(folder: Path) -> Iterator[EndedEpoch]:
    """The runs before the present one, in order, each found to end in the next; UserError where one does not."""
    numbers = _numbers(folder)
    before = ""
    for number, found in enumerate(numbers, 1):
        path = folder / PAST / str(number)
        if number != len(numbers):
            after = folder / PAST / str(number + 1)
        else:
            after = folder
        run = _ended(path / FEDERATION, path / LAST)
        assert run.federation.network is not None
        if number != found or run.federation.network.follows != before:
            raise UserError(
                f"{folder / PAST} does not begin with the federation's first run: copy another party's"
            )
        before = run.federation.roster.run.hex()
        if codec.successor_in(run.outcome.verdicts) != _bounded(after / FEDERATION, MOST):
            raise UserError(
                f"{after / FEDERATION} is not what {path / LAST} certifies: restore it from another party's folder"
            )
        yield run


def _ended(path: Path, last: Path) -> EndedEpoch:
    federation = read_federation(path)
    try:
        return EndedEpoch(federation, *_stood(Rules(federation.roster), _bounded(last, _LONGEST)))
    except Refused as error:
        raise UserError(
            f"{last} does not hold ({error}): copy it from another party's folder"
        ) from error


def _stood(rules: Rules, last: bytes) -> tuple[Certificate, Outcome]:
    """What `last_of` wrote, by the public keys alone. A client's has no state: that is the servers' own."""
    messages = [placed.message for placed in round_log.unpack(last)]
    if messages:
        cert = messages[0].body
    else:
        cert = None
    if not isinstance(cert, Cert) or not rules.certifies(cert.certificate, Kind.COMMIT):
        raise Refused("it does not begin with a certificate of this federation")
    record = cert.certificate.record
    parts = {m.body.what: m.body.content for m in messages if isinstance(m.body, Part)}
    due = {
        PartKind.GLOBALS: record.globals_,
        PartKind.VERDICTS: record.verdicts,
        PartKind.STATE: record.state,
    }
    for what, digest in due.items():
        if (content := parts.get(what)) is None and what is PartKind.STATE:
            continue
        if content is None or part_digest(what, content) != digest:
            raise Refused(f"{what.name} is not what was certified")
    return cert.certificate, Outcome(
        parts[PartKind.GLOBALS], parts[PartKind.VERDICTS], parts.get(PartKind.STATE, b"")
    )


def inherited_outcome(folder: Path, federation: Federation) -> Outcome | None:
    """What the runs before left to this one; none for a federation's first."""
    if federation.network is None or not federation.network.follows:
        return None
    *_, last = [None, *ended_epochs(folder)]
    if last is None or last.federation.roster.run.hex() != federation.network.follows:
        where = f"copy the folder {PAST}/ of another party, for a server that of a server"
        raise UserError(
            f"this federation goes on from another one, and {folder / PAST} does not have it: {where}"
        )
    read_successor(last.federation, federation.text.encode())
    return inherited_by(last.federation, last.outcome, federation)


def rounds_before(folder: Path) -> int:
    """Rounds of all runs that are over, in the folder of one that follows from them."""
    return sum(run.certificate.record.round for run in ended_epochs(folder))


def rounds_left(identity: Identity) -> int:
    """Of the federation's experiment, those that earlier runs have not done."""
    return max(0, rounds_of(identity.federation) - rounds_before(identity.folder))


def rounds_of(federation: Federation) -> int:
    """Of a federation's experiment."""
    assert federation.network is not None
    found = toml.strict(federation.network.experiment).get("rounds")
    if type(found) is not int or found < 1:
        raise UserError(f"the experiment in {FEDERATION} has no number of rounds: it cannot be run")
    return found


def _bounded(path: Path, most: int) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > most:
            raise UserError(
                f"{path} is missing, or no such file: copy it from another party's folder"
            )
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def encode_last(rules: Rules, certificate: Certificate, outcome: Outcome) -> bytes:
    """What `turn` takes."""
    round_ = certificate.record.round
    parts = round_log.parts(rules.run, round_, outcome)
    return round_log.pack(
        [rules.unsigned(Cert(round_, certificate)), *(parts if outcome.state else parts[:-1])]
    )
