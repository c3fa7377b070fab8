"""What servers say of themselves, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

_NAMED = 8  # parties that are named before the rest is counted

Said = Mapping[str, Any]  # a board, as JSON has it


def shown(boards: Mapping[str, Said | None]) -> RenderableType:
    """One server in full; of several a line each, and what they know together. None: it does not run."""
    running = [board for board in boards.values() if board is not None]
    if len(boards) == 1:
        return _whole(running[0])
    latest = max(running, key=lambda board: board["round"])
    return Group(_overview(boards), _details(latest))


def _overview(boards: Mapping[str, Said | None]) -> Table:
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
    for folder, board in boards.items():
        if board is None:
            table.add_row(folder, *[""] * 8, Text("not running", "red"))
            continue
        votes = [str(len(board[key])) for key in ("listed", "prepared", "committed")]
        if not board["finished"]:
            round_ = f"{board['round']} of {board['rounds']}"
        else:
            round_ = "finished"
        held = f"{board['held']} of {board['clients']}"
        table.add_row(
            board["name"],
            round_,
            str(board["view"]),
            board["leader"],
            board["phase"],
            held,
            *votes,
            _state(board),
        )
    return table


def _state(board: Said) -> Text:
    if board["failed"]:
        return Text("cannot write: no votes", "red")
    if board["abstaining"]:
        return Text("abstaining", "yellow")
    if len(_connected_servers(board)) + 1 < board["needed"] and not board["finished"]:
        return Text("waits for servers", "yellow")
    if board["waiting"]:
        return Text("waits for clients", "yellow")
    return Text("ok", "green")


def _whole(board: Said) -> RenderableType:
    table = _two_columns()
    _row(table, "server", f"{board['name']} (run {board['run'][:16]}…)")
    _row(table, "round", _round(board))
    _row(table, "phase", board["phase"])
    _row(table, "uploads", f"{board['held']} of {board['clients']}, {board['minimum']} are needed")
    _row(table, "listed", named(board["listed"]))
    _row(table, "prepared", named(board["prepared"]))
    _row(table, "committed", named(board["committed"]))
    if board["changing"]:
        _row(table, "ask for another view", named(board["changing"]))
    _row(table, "connected", _connected(board))
    _row(table, "log", f"{board['log_bytes'] / 2**20:.1f} MiB")
    _row(table, "state", _state(board))
    if board["failed"]:
        _row(table, "why", board["failed"])
    return Group(table, _details(board))


def _round(board: Said) -> str:
    if board["finished"]:
        return f"finished after {board['round'] - 1}"
    return f"{board['round']} of {board['rounds']}, view {board['view']}, led by {board['leader']}"


def _connected(board: Said) -> str:
    servers = f"{named(_connected_servers(board))} of {len(board['peers'])}, {board['needed'] - 1} are needed"
    return f"servers: {servers}; clients: {board['connected_clients']} of {board['clients']}"


def _connected_servers(board: Said) -> list[str]:
    return [peer["name"] for peer in board["peers"] if peer["connected"]]


def _details(board: Said) -> Table:
    """What is the same whoever is asked."""
    table = _two_columns()
    if not board["finished"]:
        _row(table, "uploads missing", named(board["missing"]))
        _row(table, "servers behind", named(board["behind"]))
        if board["unheard"]:
            _row(
                table,
                "servers not heard from",
                f"{named(board['unheard'])}: not since {board['name']} was started",
            )
    if board["last"] is not None:
        last = board["last"]
        _row(
            table, "last decided", f"round {last['round']} in view {last['view']}: {last['value']}"
        )
        _row(table, "filtered", _filtered(last))
    _row(table, "evidence", _evidence(board))
    _row(
        table,
        "ignored",
        ", ".join(f"{reason}: {count}" for reason, count in sorted(board["ignored"].items()))
        or "nothing",
    )
    return table


def _filtered(last: Said) -> str:
    """Who, and why: the detector's score, worst first."""
    if last["filtered"] is None:
        return "not known yet"
    rows = sorted(last["filtered"], key=lambda one: -one["score"])
    return (
        named([f"{one['name']} (score {one['score']})" for one in rows]) + f" of {last['clients']}"
    )


def _evidence(board: Said) -> str:
    told = [
        f"{one['name']} signed {one['what']} in round {one['round']}" for one in board["charges"]
    ]
    if told:
        return f"{board['evidence']}: {named(told)}"
    return "none"


def named(names: Sequence[str]) -> str:
    if len(names) > _NAMED:
        more = f" and {len(names) - _NAMED} more"
    else:
        more = ""
    if names:
        return ", ".join(names[:_NAMED]) + more
    return "none"


def _two_columns() -> Table:
    return Table("what", Column("found", overflow="fold"), show_header=False)


def _row(table: Table, what: str, found: str | Text) -> None:
    table.add_row(what, Text(found) if isinstance(found, str) else found)
