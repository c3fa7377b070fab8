"""A party's folder through the epochs of its federation.

Each change of federation.toml begins a new run, and what the earlier runs left is kept. past/1,
past/2, … hold it in order: federation.toml, audit.log, bodies.bin, log/, and last.bin, which is the
last certificate with the outcome that it certifies. The next federation.toml is a part of that
outcome, so whoever trusts the first federation.toml can follow to the present one by these alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    OUTCOME,
    Cert,
    Certificate,
    Kind,
    Part,
    PartKind,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation import round_log
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import MOST, inherited_by, read_successor
from fedrfq.files import toml
from fedrfq.files.atomic import sync_folder, write_atomically
from fedrfq.node.membership import certificates
from fedrfq.node.membership.identity import Identity, read_federation, read_signer
from fedrfq.node.storage.party_folder import FEDERATION, TLS_CERTIFICATE, TLS_KEY, VOTE_KEY

NEXT = "federation.next.toml"
LAST = "last.bin"
PAST = "past"
ROTATION = "rotation"
PROPOSAL = "proposal.toml"
# What moves to past/ at the end of a run, in this order. federation.toml goes last: as long as it
# is in the folder, an interrupted activation has not moved everything yet.
_MOVED = (
    "log",
    "log.damaged-*",
    "audit.log*",
    "bodies.bin*",
    PROPOSAL,
    LAST,
    FEDERATION,
)
# In the order in which a rotation moves them.
KEYS = (VOTE_KEY, TLS_KEY, TLS_CERTIFICATE)
_LEFT_OUT_IF_EMPTY = (PartKind.STATE, PartKind.SUCCESSOR)
# Far more than the parts of a round may have together.
_MAX_LAST_BYTES = 1 << 28


@dataclass(frozen=True)
class EndedEpoch:
    """A run that has ended: its federation, and the certificate and outcome of its last round."""

    federation: Federation
    certificate: Certificate
    outcome: Outcome


def activate_successor(folder: Path, last: bytes, successor: bytes) -> None:
    """Move a run that has ended to past/, and continue with its successor's federation.toml.

    `last` is what `encode_last` returned. Both files are written before anything is moved, so that
    `complete_activation` can finish after a crash at any point.
    """
    write_atomically(folder / LAST, last)
    write_atomically(folder / NEXT, successor)
    complete_activation(folder)


def complete_activation(folder: Path) -> None:
    """Finish an activation that was begun, if one was; after any crash the result is the same."""
    if not (folder / NEXT).exists():
        return
    past = _destination(folder)
    _check_certified(folder, past)
    # Each move is atomic and is skipped if an earlier attempt has made it.
    past.mkdir(parents=True, exist_ok=True)
    for pattern in _MOVED:
        for path in sorted(folder.glob(pattern)):
            path.rename(past / path.name)
    _rotate_keys(folder, past)
    # The moves must be on the disk before NEXT is gone, which alone says that they were begun.
    sync_folder(past)
    (folder / NEXT).rename(folder / FEDERATION)
    sync_folder(folder)


def _check_certified(folder: Path, past: Path) -> None:
    """Raise a UserError unless the last certificate of the run names the next federation.toml.

    An earlier attempt may have moved either file to past/ already.
    """
    federation = _moved_or_not(folder, past, FEDERATION)
    last = _moved_or_not(folder, past, LAST)
    certified = _read_ended(federation, last).outcome.successor
    if certified != _read(folder / NEXT, MOST):
        raise UserError(f"{folder / NEXT} is not what {last} certifies: move it away")


def _moved_or_not(folder: Path, past: Path, name: str) -> Path:
    if (past / name).exists():
        return past / name
    return folder / name


def _destination(folder: Path) -> Path:
    """Return the folder in past/ for the run that has ended.

    That is the latest one if an interrupted activation has begun to fill it. It has if
    federation.toml, which is moved last, is missing here (everything was moved) or there.
    """
    latest = max(_numbers(folder), default=0)
    if latest:
        latest_folder = folder / PAST / str(latest)
        if not (folder / FEDERATION).exists() or not (latest_folder / FEDERATION).exists():
            return latest_folder
    return folder / PAST / str(latest + 1)


def takes_part(identity: Identity, successor: bytes) -> bool:
    """Return whether the party is in the successor, with its present keys or with rotated ones."""
    federation = Federation.read(successor.decode(), NEXT)
    public_keys = {identity.signer.public}
    if (identity.folder / ROTATION).is_dir():
        public_keys.add(read_signer(identity.folder / ROTATION).public)
    return not public_keys.isdisjoint(federation.keys.values())


def _rotate_keys(folder: Path, past: Path) -> None:
    """Replace the keys by those in rotation/ if the successor lists them; keep the old in past/."""
    rotation = folder / ROTATION
    if not _is_rotation_listed(rotation, (folder / NEXT).read_bytes()):
        return
    for name in KEYS:
        if (rotation / name).exists():
            # After a crash between the two moves the old key is in past/ already.
            if (folder / name).exists() and not (past / name).exists():
                (folder / name).rename(past / name)
            (rotation / name).rename(folder / name)
    for rest in rotation.iterdir():
        rest.rename(past / rest.name)
    rotation.rmdir()


def _is_rotation_listed(rotation: Path, successor: bytes) -> bool:
    """Return whether the certificate made for a rotation is one of the successor's."""
    if not rotation.is_dir():
        return False
    certificate = rotation / TLS_CERTIFICATE
    if not certificate.exists():
        # It is moved last, so either all keys have been moved, or `fedrfq keys rotate` was
        # interrupted before it had written them all.
        if any((rotation / name).exists() for name in KEYS):
            return False
        certificate = rotation.parent / TLS_CERTIFICATE
    return (
        certificates.read(certificate)
        in Federation.read(successor.decode(), NEXT).party_by_certificate
    )


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the folders in past/."""
    past = folder / PAST
    if not past.is_dir():
        return []
    return sorted(int(path.name) for path in past.iterdir() if path.name.isdecimal())


def ended_epochs(folder: Path) -> Iterator[EndedEpoch]:
    """Yield the runs before the present one, in order, after checking that each led to the next.

    Raises a UserError at the first that did not.
    """
    numbers = _numbers(folder)
    previous_run = ""
    for number, expected in enumerate(numbers, 1):
        path = folder / PAST / str(number)
        # The file that this run certified is now in the next folder, or the present one.
        after = folder
        if number != len(numbers):
            after = folder / PAST / str(number + 1)
        epoch = _read_ended(path / FEDERATION, path / LAST)
        assert epoch.federation.network is not None
        if number != expected or epoch.federation.network.follows != previous_run:
            raise UserError(
                f"{folder / PAST} does not begin with the first run of the federation: "
                "copy that of another party"
            )
        # The first run follows none, and each other the one before.
        previous_run = epoch.federation.roster.run.hex()
        if epoch.outcome.successor != _read(after / FEDERATION, MOST):
            raise UserError(
                f"{after / FEDERATION} is not what {path / LAST} certifies: "
                "restore it from the folder of another party"
            )
        yield epoch


def _read_ended(federation_path: Path, last_path: Path) -> EndedEpoch:
    federation = read_federation(federation_path)
    try:
        certificate, outcome = _decode_last(
            Rules(federation.roster), _read(last_path, _MAX_LAST_BYTES)
        )
    except Refused as error:
        raise UserError(
            f"{last_path} does not hold ({error}): copy it from the folder of another party"
        ) from error
    return EndedEpoch(federation, certificate, outcome)


def _decode_last(rules: Rules, last: bytes) -> tuple[Certificate, Outcome]:
    """Decode what `encode_last` wrote, and check it with the public keys alone.

    A client's has no state: that is the memory of the detector, which only servers have.
    """
    messages = [placed.message for placed in round_log.unpack(last)]
    first = None
    if messages:
        first = messages[0].body
    if not isinstance(first, Cert) or not rules.certifies(first.certificate, Kind.COMMIT):
        raise Refused("it does not begin with a certificate of this federation")
    record = first.certificate.record
    certified_digests = dict(zip(OUTCOME, record.outcome(), strict=True))
    # Of a round that changes nothing, the empty successor is not written.
    parts = {PartKind.SUCCESSOR: b""}
    parts |= {m.body.what: m.body.content for m in messages if isinstance(m.body, Part)}
    for kind, digest in certified_digests.items():
        if kind is PartKind.STATE and kind not in parts:
            continue
        if kind not in parts or part_digest(kind, parts[kind]) != digest:
            raise Refused(f"{kind.name} is not what was certified")
    outcome = Outcome(*(parts.get(kind, b"") for kind in OUTCOME))
    # Byte for byte, so that nothing uncertified (a round, a run) is hidden in the envelopes.
    if encode_last(rules, first.certificate, outcome) != last:
        raise Refused("it has more than the certificate and what was certified")
    return first.certificate, outcome


def inherited_outcome(folder: Path, federation: Federation) -> Outcome | None:
    """Return what the earlier runs have left to this one, or None for a federation's first run."""
    if federation.network is None or not federation.network.follows:
        return None
    earlier = list(ended_epochs(folder))
    if not earlier or earlier[-1].federation.roster.run.hex() != federation.network.follows:
        raise UserError(
            f"this federation continues an earlier one, which is not in {folder / PAST}: "
            f"copy the folder {PAST}/ of another party (a server needs that of a server)"
        )
    last = earlier[-1]
    # Checked again, since more than f lying servers could certify what the rules forbid.
    read_successor(last.federation, federation.text.encode())
    return inherited_by(last.federation, last.outcome, federation)


def rounds_before(folder: Path) -> int:
    """Return how many rounds the ended runs of this folder's federation have had together."""
    return sum(epoch.certificate.record.round for epoch in ended_epochs(folder))


def rounds_left(identity: Identity) -> int:
    """Return how many rounds of the experiment the earlier runs have not done."""
    return max(0, rounds_of(identity.federation) - rounds_before(identity.folder))


def rounds_of(federation: Federation) -> int:
    """Return how many rounds the experiment of a federation has."""
    assert federation.network is not None
    rounds = toml.strict(federation.network.experiment).get("rounds")
    # A bool is an int to isinstance, and no number of rounds.
    if type(rounds) is not int or rounds < 1:
        raise UserError(
            f"the experiment in {FEDERATION} has no number of rounds, so it cannot be run: "
            "use one that has"
        )
    return rounds


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            raise UserError(f"{path} is missing: copy it from the folder of another party")
        if path.stat().st_size > max_bytes:
            raise UserError(
                f"{path} is longer than {max_bytes} bytes: copy it from the folder of another party"
            )
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): copy it from the folder of another party"
        ) from error


def encode_last(rules: Rules, certificate: Certificate, outcome: Outcome) -> bytes:
    """Encode how a run ended, for `activate_successor`; a client's outcome has no state."""
    round_ = certificate.record.round
    cert = rules.unsigned(Cert(round_, certificate))
    parts = [
        rules.unsigned(Part(round_, kind, content))
        for kind, content in zip(OUTCOME, outcome, strict=True)
        if content or kind not in _LEFT_OUT_IF_EMPTY
    ]
    return round_log.pack([cert, *parts])
