"""Changing a federation: of its file and parties' requests, the file that takes its place once a quorum of servers agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedrfq.errors import UserError, nearest
from fedrfq.federation.federation_file import Charter
from fedrfq.federation.members import ROLES, Seat
from fedrfq.federation.reconfiguration import next_of
from fedrfq.node.membership.request import Request


class _Row(NamedTuple):
    """A party of federation.toml."""

    seat: Seat
    key: bytes


def changed(
    charter: Charter,
    requests: Sequence[Request] = (),
    expelled: Sequence[str] = (),
    minimum: int | None = None,
) -> Charter:
    """The federation without the expelled, with those who ask. Who asks under a name that has a seat takes it, with new keys;
    the others take the seats of the expelled of their kind, and further ones. Everyone else keeps its place in the order."""
    assert charter.network is not None
    for request in requests:
        request.check()
    _check_names(charter, expelled)
    if not requests and not expelled and minimum is None:
        raise UserError("nothing would change: give requests, --expel or --minimum")
    servers, clients, couriers = (
        _seated(
            _rows(charter, role),
            [request for request in requests if request.role == role],
            expelled,
        )
        for role in ROLES
    )
    if not servers or not clients:
        raise UserError("a federation has servers and clients: not all of them can be expelled")
    follows, seats = (
        charter.roster.run.hex(),
        tuple(row.seat for row in servers + clients + couriers),
    )
    made = replace(
        charter,
        timings=replace(
            charter.timings, minimum=charter.timings.minimum if minimum is None else minimum
        ),
        task=replace(charter.task, clients=len(clients)),
        servers=tuple(row.key for row in servers),
        clients=tuple(row.key for row in clients),
        network=replace(charter.network, follows=follows, seats=seats),
        couriers=tuple(row.key for row in couriers),
    )
    return next_of(charter, made.text.encode())


def _rows(charter: Charter, role: str) -> list[_Row]:
    return [
        _Row(seat, charter.keys[party])
        for party, seat in charter.seats.items()
        if charter.role(party) == role
    ]


def _check_names(charter: Charter, expelled: Sequence[str]) -> None:
    names = [seat.name for seat in charter.seats.values()]
    for name in expelled:
        if name not in names:
            raise UserError(f"there is no party {name!r} in the federation{nearest(name, names)}")


def _seated(
    rows: Sequence[_Row], requests: Sequence[Request], expelled: Sequence[str]
) -> list[_Row]:
    names = {row.seat.name for row in rows}
    renewed = {request.seat.name: request for request in requests if request.seat.name in names}
    new, seated = [request for request in requests if request.seat.name not in names], []
    for row in rows:
        if row.seat.name not in expelled:
            seated.append(_row(renewed[row.seat.name]) if row.seat.name in renewed else row)
        elif new:
            seated.append(_row(new.pop(0)))
    return [*seated, *map(_row, new)]


def _row(request: Request) -> _Row:
    return _Row(request.seat, request.key)


def differences(old: Charter, new: Charter) -> list[str]:
    """What an operator is asked to agree to, a line each."""
    before, after = _parties(old), _parties(new)
    lines = [f"{name}: out" for name in before if name not in after]
    lines += [f"{name}: in, as a {after[name][2]}" for name in after if name not in before]
    for name in after:
        if name in before and after[name] != before[name]:
            what = [
                label
                for label, a, b in zip(_LABELS, before[name], after[name], strict=True)
                if a != b
            ]
            lines.append(f"{name}: a new {', '.join(what)}")
    for key, value in vars(new.timings).items():
        if value != getattr(old.timings, key):
            lines.append(f"{key}: {getattr(old.timings, key)} -> {value}")
    if new.task.detector != old.task.detector:
        lines.append(f"detector: {old.task.detector} -> {new.task.detector}")
    if new.experiment != old.experiment:
        lines.append("experiment: another one")
    return lines


_LABELS = ("key", "seat", "role")


def _parties(charter: Charter) -> dict[str, tuple[bytes, Seat, str]]:
    return {
        seat.name: (charter.keys[party], seat, charter.role(party))
        for party, seat in charter.seats.items()
    }
