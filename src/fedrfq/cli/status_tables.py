"""The tables of `fedrfq committee status`, made from the statuses that parties report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

# Parties that are named before the rest is only counted.
_MAX_NAMED = 8

# A `ServerStatus` or a `ClientStatus`, as JSON has it.
Status = Mapping[str, Any]


def status_tables(
    servers: Mapping[str, Status | None], clients: Mapping[str, Status | None] | None = None
) -> RenderableType:
    """Return one party in full; or a line for each of several, and what servers know together.

    Statuses are by the name of the party's folder; None stands for a party that is not running.
    """
    clients = clients or {}
    parts: list[RenderableType] = []
    running = [status for status in servers.values() if status is not None]
    if len(servers) == 1 and running:
        parts.append(_one_server(running[0]))
    elif servers:
        parts.append(_overview(servers))
    if len(servers) > 1 and running:
        # The server that is furthest ahead knows most about the others.
        parts.append(_details(max(running, key=lambda status: status["round"])))
    training = [status for status in clients.values() if status is not None]
    if len(clients) == 1 and training:
        parts.append(_one_client(training[0]))
    elif clients:
        parts.append(_clients(clients))
    return Group(*parts)


def _clients(statuses: Mapping[str, Status | None]) -> Table:
    """Return a line for each client."""
    table = Table(
        "client", "round", "phase", "receipts", "certified", "verdict", "accuracy", "state"
    )
    for folder, status in statuses.items():
        if status is None:
            table.add_row(folder, *[""] * 6, Text("not running", "red"))
            continue
        last = status["last"] or {"round": "", "verdict": "", "accuracy": None}
        table.add_row(
            status["name"],
            "finished" if status["finished"] else f"{status['round']} of {status['rounds']}",
            status["phase"],
            f"{len(status['receipts'])} of {status['servers']}",
            str(last["round"]),
            last["verdict"],
            "" if last["accuracy"] is None else f"{last['accuracy']:.2f} %",
            _client_state(status),
        )
    return table


def _client_state(status: Status) -> Text:
    if status["failed"]:
        return Text("cannot write, so it does not upload", "red")
    if len(status["connected"]) < status["needed"] and not status["finished"]:
        return Text("waiting for servers", "yellow")
    return Text("ok", "green")


def _one_client(status: Status) -> Table:
    table = _two_columns()
    _row(table, "client", f"{status['name']} (run {status['run'][:16]}…)")
    round_ = f"{status['round']} of {status['rounds']}: {status['phase']}"
    if status["finished"]:
        round_ = f"finished after round {status['round'] - 1}"
    _row(table, "round", round_)
    _row(table, "last upload", _upload(status["upload"]))
    receipts = f"{join_names(status['receipts'])} of {status['servers']}"
    _row(table, "receipts", f"{receipts}; none is sent for a round that is decided at once")
    _row(table, "certified result", _certified(status["last"]))
    # Releases before there was noise do not speak of it.
    if status.get("privacy") is not None:
        _row(table, "privacy", _privacy(status["privacy"]))
    _row(table, "connected", f"{join_names(status['connected'])}; a round needs {status['needed']}")
    _unreachable(table, status)
    _row(table, "certificate", f"expires {status['certificate_expires']}; renews itself before")
    _row(table, "messages ignored", _ignored(status))
    _row(table, "state", _client_state(status))
    if status["failed"]:
        _row(table, "why", status["failed"])
    return table


def _upload(upload: Status | None) -> str:
    if upload is None:
        return "none yet"
    if upload["at"] is None:
        return f"round {upload['round']}, before this client was started"
    return f"round {upload['round']}, {upload['at']}"


def _privacy(claim: Status) -> str:
    spent = f"{claim['uploads']} uploads with noise {claim['noise']:g}"
    # A client of an earlier release tells of no steps.
    if claim.get("steps"):
        spent += f" and {claim['steps']} steps of training with noise {claim['training_noise']:g}"
    if claim["epsilon"] is None:
        return f"{spent}; no ε: {claim['why']}"
    budget = ""
    if claim["budget"] is not None:
        budget = f" of a budget of {claim['budget']:g}"
    return (
        f"{spent}: ε = {claim['epsilon']:.4g}{budget}, δ = {claim['delta']:g}, per {claim['unit']}"
    )


def _certified(last: Status | None) -> str:
    if last is None:
        return "none yet"
    accuracy = f"accuracy {last['accuracy']:.2f} %"
    return f"round {last['round']} {last['value']}: {last['why']}; {accuracy}"


def _overview(statuses: Mapping[str, Status | None]) -> Table:
    table = Table(
        "server",
        "round",
        "view",
        "leader",
        "phase",
        "uploads",
        "listed",
        "prepared",
        "committed",
        "state",
    )
    for folder, status in statuses.items():
        if status is None:
            table.add_row(folder, *[""] * 8, Text("not running", "red"))
            continue
        round_ = f"{status['round']} of {status['rounds']}"
        if status["finished"]:
            table.add_row(status["name"], "finished", *[""] * 7, _state(status))
            continue
        table.add_row(
            status["name"],
            round_,
            str(status["view"]),
            status["leader"],
            status["phase"],
            f"{status['held']} of {status['clients']}",
            str(len(status["listed"])),
            str(len(status["prepared"])),
            str(len(status["committed"])),
            _state(status),
        )
    return table


def _state(status: Status) -> Text:
    if status["failed"]:
        return Text("cannot write, so it does not vote", "red")
    if status["abstaining"]:
        return Text("abstaining", "yellow")
    # The server itself counts among those that a round needs.
    reachable = len(_connected_servers(status)) + 1
    if reachable < status["needed"] and not status["finished"]:
        return Text("waiting for servers", "yellow")
    if status["waiting"]:
        return Text("waiting for clients", "yellow")
    return Text("ok", "green")


def _one_server(status: Status) -> RenderableType:
    table = _two_columns()
    _row(table, "server", f"{status['name']} (run {status['run'][:16]}…)")
    _row(table, "round", _round(status))
    if not status["finished"]:
        _votes(table, status)
    _row(table, "connected", _connected(status))
    _unreachable(table, status)
    _row(table, "certificate", f"expires {status['certificate_expires']}; renews itself before")
    _row(table, "log", f"{status['log_bytes'] / 2**20:.1f} MiB")
    _row(table, "state", _state(status))
    if status["failed"]:
        _row(table, "why", status["failed"])
    return Group(table, _details(status))


def _votes(table: Table, status: Status) -> None:
    uploads = f"{status['held']} of {status['clients']}; a round needs {status['minimum']}"
    _row(table, "phase", status["phase"])
    _row(table, "uploads", uploads)
    _row(table, "listed", join_names(status["listed"]))
    _row(table, "prepared", join_names(status["prepared"]))
    _row(table, "committed", join_names(status["committed"]))
    if status["changing"]:
        _row(table, "ask for another view", join_names(status["changing"]))


def _round(status: Status) -> str:
    if status["finished"]:
        return f"finished after round {status['round'] - 1}"
    round_ = f"{status['round']} of {status['rounds']}"
    return f"{round_}, view {status['view']}, led by {status['leader']}"


def _connected(status: Status) -> str:
    servers = f"{join_names(_connected_servers(status))} of {len(status['peers'])}"
    clients = f"{status['connected_clients']} of {status['clients']}"
    return f"servers: {servers}; a round needs {status['needed'] - 1}; clients: {clients}"


def _unreachable(table: Table, status: Status) -> None:
    # Releases before there were reasons do not speak of them.
    found = [f"{name} ({why})" for name, why in status.get("unreachable", {}).items()]
    if found:
        _row(table, "cannot connect", join_names(found))


def _connected_servers(status: Status) -> list[str]:
    return [peer["name"] for peer in status["peers"] if peer["connected"]]


def _details(status: Status) -> Table:
    """Return what is much the same whichever server reports it."""
    table = _two_columns()
    if not status["finished"]:
        _row(table, "uploads missing", join_names(status["missing"]))
        _row(table, "servers behind", join_names(status["behind"]))
        if status["unheard"]:
            names = join_names(status["unheard"])
            _row(table, "servers not heard from", f"{names}, since {status['name']} was started")
    last = status["last"]
    if last is not None:
        decision = f"round {last['round']} in view {last['view']}: {last['value']}"
        _row(table, "last decided", decision)
        _row(table, "filtered", _named(last, "filtered"))
        _row(table, "less weight", _named(last, "reduced"))
    _row(table, "evidence", _evidence(status))
    _row(table, "messages ignored", _ignored(status))
    return table


def _named(last: Status, key: str) -> str:
    """Return the clients that were filtered or reduced and why, the worst first."""
    if last[key] is None:
        return "not known yet"
    worst_first = sorted(last[key], key=lambda client: (client["weight"], -client["score"]))
    names = [
        f"{client['name']} (score {client['score']}; {client['reason']})" for client in worst_first
    ]
    return f"{join_names(names)} of {last['clients']}"


def _evidence(status: Status) -> str:
    charges = [
        f"{charge['name']} signed {charge['what']} in round {charge['round']}"
        for charge in status["charges"]
    ]
    if not charges:
        return "none"
    return f"{status['evidence']}: {join_names(charges)}"


def _ignored(status: Status) -> str:
    counts = [f"{reason}: {count}" for reason, count in sorted(status["ignored"].items())]
    return ", ".join(counts) or "none"


def join_names(names: Sequence[str]) -> str:
    """Return the names separated by commas, those beyond the first few only counted."""
    if not names:
        return "none"
    text = ", ".join(names[:_MAX_NAMED])
    if len(names) > _MAX_NAMED:
        text += f" and {len(names) - _MAX_NAMED} more"
    return text


def _two_columns() -> Table:
    return Table("label", Column("value", overflow="fold"), show_header=False)


def _row(table: Table, label: str, value: str | Text) -> None:
    """Add a row; a string is taken as it is, since servers' words may look like markup."""
    if isinstance(value, str):
        value = Text(value)
    table.add_row(label, value)
