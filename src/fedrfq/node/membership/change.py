"""Changing a federation: of its file and parties' requests, the file that takes its place once a quorum of servers agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedrfq.errors import UserError, nearest
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.members import ROLES, Member
from fedrfq.federation.reconfiguration import read_successor
from fedrfq.node.membership.request import Request


class _Row(NamedTuple):
    """A party of federation.toml."""

    member: Member
    key: bytes


def changed(
    federation: Federation,
    requests: Sequence[Request] = (),
    expelled: Sequence[str] = (),
    minimum: int | None = None,
) -> Federation:
    """The federation without the expelled, with those who ask. Who asks under a name that has a seat takes it, with new keys;
    the others take the seats of the expelled of their kind, and further ones. Everyone else keeps its place in the order."""
    assert federation.network is not None
    for request in requests:
        request.check()
    _check_names(federation, expelled)
    if not requests and not expelled and minimum is None:
        raise UserError("nothing would change: give requests, --expel or --minimum")
    servers, clients, couriers = (
        _seated(
            _rows(federation, role),
            [request for request in requests if request.role == role],
            expelled,
        )
        for role in ROLES
    )
    if not servers or not clients:
        raise UserError("a federation has servers and clients: not all of them can be expelled")
    follows = federation.roster.run.hex()
    members = tuple(row.member for row in servers + clients + couriers)
    made = replace(
        federation,
        timings=replace(
            federation.timings, minimum=federation.timings.minimum if minimum is None else minimum
        ),
        task=replace(federation.task, clients=len(clients)),
        servers=tuple(row.key for row in servers),
        clients=tuple(row.key for row in clients),
        network=replace(federation.network, follows=follows, members=members),
        couriers=tuple(row.key for row in couriers),
    )
    return read_successor(federation, made.text.encode())


def _rows(federation: Federation, role: str) -> list[_Row]:
    return [
        _Row(member, federation.keys[party])
        for party, member in federation.members.items()
        if federation.role(party) == role
    ]


def _check_names(federation: Federation, expelled: Sequence[str]) -> None:
    names = [member.name for member in federation.members.values()]
    for name in expelled:
        if name not in names:
            raise UserError(f"there is no party {name!r} in the federation{nearest(name, names)}")


def _seated(
    rows: Sequence[_Row], requests: Sequence[Request], expelled: Sequence[str]
) -> list[_Row]:
    names = {row.member.name for row in rows}
    renewed = {request.member.name: request for request in requests if request.member.name in names}
    new = [request for request in requests if request.member.name not in names]
    seated = []
    for row in rows:
        if row.member.name not in expelled:
            seated.append(_row(renewed[row.member.name]) if row.member.name in renewed else row)
        elif new:
            seated.append(_row(new.pop(0)))
    return [*seated, *map(_row, new)]


def _row(request: Request) -> _Row:
    return _Row(request.member, request.key)


def differences(old: Federation, new: Federation) -> list[str]:
    """What an operator is asked to agree to, a line each."""
    before = _parties(old)
    after = _parties(new)
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


def _parties(federation: Federation) -> dict[str, tuple[bytes, Member, str]]:
    return {
        member.name: (federation.keys[party], member, federation.role(party))
        for party, member in federation.members.items()
    }
