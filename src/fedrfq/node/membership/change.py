"""Changing a federation: make the federation.toml that is to replace the present one.

The new file takes effect once a quorum of servers has proposed it (`proposal`, `epochs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedrfq.errors import UserError, did_you_mean
from fedrfq.federation import decisions as own_decisions
from fedrfq.federation.federation_file import Federation, experiment_digest
from fedrfq.federation.members import ROLES, Member
from fedrfq.federation.reconfiguration import read_successor
from fedrfq.files import toml
from fedrfq.node.membership.request import Request

_MS_PER_S = 1000


class _Row(NamedTuple):
    """A party in federation.toml: what others know of it, and its key for votes."""

    member: Member
    key: bytes


def changed(
    federation: Federation,
    requests: Sequence[Request] = (),
    expelled: Sequence[str] = (),
    minimum: int | None = None,
    protocol: int | None = None,
    decisions: int | None = None,
    *,
    rounds: int | None = None,
    pause_s: int | None = None,
) -> Federation:
    """Return the federation without the expelled parties, and with those that ask to take part.

    A request under the name of a party of the same role gives that party new keys. Other new
    parties take the places of expelled ones of their role, and then further places. Everyone else
    keeps its place, since the order of the parties is their numbering. `rounds` counts all, those
    of earlier runs, too.
    """
    assert federation.network is not None
    # A forged or expired request must not get as far as the servers.
    for request in requests:
        request.check()
    _check_names(federation, expelled)
    settings = (minimum, protocol, decisions, rounds, pause_s)
    if not requests and not expelled and settings.count(None) == len(settings):
        raise UserError(
            "nothing would change: give requests, --expel, --minimum, --rounds, --pause, --protocol"
            " or --decisions"
        )
    servers, clients, couriers = (_new_rows(federation, role, requests, expelled) for role in ROLES)
    if not servers or not clients:
        raise UserError(
            "no server or no client would be left: a federation needs both, so expel fewer parties"
        )
    if minimum is None:
        minimum = federation.timings.minimum
    if protocol is None:
        protocol = federation.protocol
    if decisions is None:
        decisions = federation.decisions
    elif decisions != own_decisions.VERSION:
        # Only the release that has a version can tell whether it is able to go on from here.
        raise UserError(
            f"this program decides by version {own_decisions.VERSION}: make the change with the"
            f" release of fedrfq that decides by version {decisions}"
        )
    if pause_s is None:
        pause_s = federation.pause_s
    experiment = _with_rounds(federation.network.experiment, rounds)
    # Absent clients are waited for as long after the pause as before.
    deadline_ms = federation.timings.deadline_ms + (pause_s - federation.pause_s) * _MS_PER_S
    successor = replace(
        federation,
        experiment=experiment_digest(toml.strict(experiment)),
        timings=replace(federation.timings, minimum=minimum, deadline_ms=deadline_ms),
        pause_s=pause_s,
        task=replace(federation.task, clients=len(clients)),
        servers=tuple(row.key for row in servers),
        clients=tuple(row.key for row in clients),
        network=replace(
            federation.network,
            # Ties the file to this run: it cannot be replayed in another federation.
            follows=federation.roster.run.hex(),
            experiment=experiment,
            members=tuple(row.member for row in servers + clients + couriers),
        ),
        couriers=tuple(row.key for row in couriers),
        protocol=protocol,
        decisions=decisions,
    )
    # The same checks that every server will make.
    return read_successor(federation, successor.text.encode())


def _with_rounds(experiment: str, rounds: int | None) -> str:
    """Return the text of an experiment with another number of rounds, if one is given."""
    if rounds is None:
        return experiment
    return toml.dump({**toml.strict(experiment), "rounds": rounds})


def _check_names(federation: Federation, expelled: Sequence[str]) -> None:
    names = [member.name for member in federation.members.values()]
    for name in expelled:
        if name not in names:
            raise UserError(
                f"there is no party {name!r} in the federation{did_you_mean(name, names)}"
            )


def _new_rows(
    federation: Federation, role: str, requests: Sequence[Request], expelled: Sequence[str]
) -> list[_Row]:
    """Return the parties of one role, in their new order."""
    rows = [
        _Row(member, federation.keys[party])
        for party, member in federation.members.items()
        if federation.role(party) == role
    ]
    names = {row.member.name for row in rows}
    asked = [_Row(request.member, request.key) for request in requests if request.role == role]
    renewed = {row.member.name: row for row in asked if row.member.name in names}
    # Two requests of one name both stay, and `read_successor` refuses them.
    newcomers = [row for row in asked if row.member.name not in names]
    new_rows = []
    for row in rows:
        name = row.member.name
        if name in expelled:
            if newcomers:
                new_rows.append(newcomers.pop(0))
        else:
            new_rows.append(renewed.get(name, row))
    return new_rows + newcomers


class _Party(NamedTuple):
    """What a change can change about a party; the names of the fields are shown to the user."""

    key: bytes
    address: str
    certificate: bytes
    role: str


def differences(old: Federation, new: Federation) -> list[str]:
    """Return what an operator is asked to approve, one line for each difference."""
    before = _parties(old)
    after = _parties(new)
    lines = [_leaves(old, name, before[name].role) for name in before if name not in after]
    lines += [f"{name}: joins as a {after[name].role}" for name in after if name not in before]
    for name in after:
        if name in before and after[name] != before[name]:
            lines.append(f"{name}: new {', '.join(_changed_fields(before[name], after[name]))}")
    for key, value in vars(new.timings).items():
        previous = getattr(old.timings, key)
        if value != previous:
            lines.append(f"{key}: {previous} -> {value}")
    if new.protocol != old.protocol:
        lines.append(f"protocol: version {old.protocol} -> {new.protocol}")
    if new.decisions != old.decisions:
        lines.append(
            f"decisions: version {old.decisions} -> {new.decisions}; once that is agreed on,"
            f" servers stop and need the release of fedrfq that decides by version {new.decisions}"
        )
    if new.task.detector != old.task.detector:
        lines.append(f"detector: {old.task.detector} -> {new.task.detector}")
    if new.pause_s != old.pause_s:
        lines.append(f"pause between rounds: {old.pause_s} s -> {new.pause_s} s")
    lines += _experiment_differences(old, new)
    if new.task.public is not None and new.task.public.privacy is not None:
        lines.append(
            "noise: the next run begins with an exchange, and clients draw another upload for it,"
            " which costs them ε as every upload does"
        )
    return lines


def _experiment_differences(old: Federation, new: Federation) -> list[str]:
    if new.experiment == old.experiment:
        return []
    assert old.network is not None
    assert new.network is not None
    before, after = (toml.strict(each.network.experiment) for each in (old, new))  # type: ignore[union-attr]
    if {**before, "rounds": after["rounds"]} == after:
        noise = after.get("privacy", {}).get("noise") or after.get("train", {}).get("dp_noise")
        cost = ", and with noise every round more may cost clients ε" if noise else ""
        return [f"rounds in all: {before['rounds']} -> {after['rounds']}{cost}"]
    return ["experiment: replaced by another one"]


def _leaves(old: Federation, name: str, role: str) -> str:
    if old.task.is_revocable and role == "client":
        return f"{name}: leaves, and its statistics are forgotten"
    return f"{name}: leaves"


def _changed_fields(before: _Party, after: _Party) -> list[str]:
    return [name for name in _Party._fields if getattr(before, name) != getattr(after, name)]


def _parties(federation: Federation) -> dict[str, _Party]:
    parties = {}
    for party, member in federation.members.items():
        parties[member.name] = _Party(
            federation.keys[party], member.address, member.certificate, federation.role(party)
        )
    return parties
