"""The page of a federation on a network while it goes on, from the folders on this machine.

Servers that run here are asked for their status; rounds are read from their logs, and accuracies
from the histories of clients. Nothing is verified: `fedrfq verify` does that.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.consensus.messages import Cert, Evidence, Part, PartKind, Upload
from fedrfq.consensus.wire import Refused
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import unpack
from fedrfq.files import hash_chain, toml
from fedrfq.files.hash_chain import BrokenChain
from fedrfq.files.regular import read_text
from fedrfq.node.membership.identity import read_federation
from fedrfq.node.ops.status_client import ask, parties
from fedrfq.node.storage import client_history
from fedrfq.node.storage.party_folder import FEDERATION
from fedrfq.report import committee_figures, marks, markup
from fedrfq.report.client_figures import holdings
from fedrfq.report.curves import HEAD, PROTOTYPE
from fedrfq.report.figure import Figure, Row, banded
from fedrfq.report.moving import moving
from fedrfq.report.page import ReportPage, Section
from fedrfq.report.unchanged import Unchanged
from fedrfq.runs.progress import duration
from fedrfq.runs.trail import TrailRound

# Bytes that are read of a log, and of a client's history.
_MAX_LOG_BYTES = 1 << 26
_MAX_HISTORY_BYTES = 1 << 24
# Clients whose histories are read, and classes and rounds of prototypes that are drawn.
_MAX_CLIENTS = 200
_MAX_CLASSES = 128
_MAX_TRAIL = 50
# Of an upload, in percent.
_FULL_WEIGHT = 100

Status = dict[str, Any]
Line = dict[str, Any]


@dataclass(frozen=True)
class ShownRound:
    """A round that a server's log has: its view, and how many proofs of misbehaviour there are."""

    round: int
    view: int
    evidence: int


@dataclass(frozen=True)
class Bodies:
    """What is drawn of a server's bodies: prototypes, and who sent what in the last `round`."""

    trail: Sequence[TrailRound] = ()
    round: int = 0
    uploads: Mapping[int, bytes] = field(default_factory=dict)  # the last of each client


class LiveFederation:
    """Makes the page of a federation's folder, or of one party's, as it is now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rounds = Unchanged(self._read_rounds, ("audit.log",))
        self._bodies = Unchanged(self._read_bodies, ("bodies.bin",))
        self._history = Unchanged(_read_history, (client_history.NAME,))

    def page(self) -> ReportPage:
        """Return the page."""
        federation = read_federation(self.folder / FEDERATION)
        self.federation = federation
        folders = self._servers()
        statuses = {path.name: ask(path) for path in folders}
        histories = self._histories(federation)
        logs = {path: self._rounds(path) for path in folders}
        best = max(logs, key=lambda path: len(logs[path]), default=None)
        rounds = logs[best] if best is not None else []
        bodies = self._bodies(best) if best is not None else Bodies()
        figures = [
            ("Accuracy", _accuracy(histories)),
            ("Filtered clients", _filtered(histories)),
            ("Classes and clients", _held(federation, bodies)),
            ("Leaders and views", _views(federation, rounds)),
            ("How prototypes moved", moving(bodies.trail, _class_names(federation))),
        ]
        sections = [Section("Servers", _server_table(statuses)), *_latest(statuses)]
        sections += [Section(title, figures=[found]) for title, found in figures if found]
        return ReportPage(
            title=f"Federation {self.folder.resolve().name}",
            subtitle=federation.about(),
            head=markup.tiles(_tiles(federation, statuses, histories, rounds))
            + markup.notes([note for path in folders for note in _too_large(path)]),
            sections=sections,
        )

    def _servers(self) -> list[Path]:
        """Return the folders of the servers here; the folder of a client has none."""
        return [path for path, role in parties(self.folder) if role == "server"]

    def _histories(self, federation: Federation) -> dict[str, list[Line]]:
        """Return the histories of the clients whose folders are here, by their names."""
        found: dict[str, list[Line]] = {}
        for party, member in list(federation.members.items()):
            if party >= 0 or len(found) >= _MAX_CLIENTS:
                continue
            for folder in (self.folder / member.name, self.folder):
                lines = self._history(folder)
                if lines and (folder != self.folder or folder.resolve().name == member.name):
                    found[member.name] = lines
                    break
        return found

    def _read_rounds(self, folder: Path) -> list[ShownRound]:
        """Return the rounds of a server's log, up to where it is damaged, if it is."""
        rounds: list[ShownRound] = []
        for messages in _entries(folder / "audit.log", self.federation):
            bodies = [placed.message.body for placed in messages]
            if bodies and isinstance(bodies[0], Cert):
                certificate = bodies[0].certificate
                proofs = sum(isinstance(body, Evidence) for body in bodies)
                rounds.append(ShownRound(certificate.record.round, certificate.view, proofs))
        return rounds

    def _read_bodies(self, folder: Path) -> Bodies:
        """Return the global prototypes and the last uploads that a server has the bodies of."""
        task = self.federation.task
        trail: list[TrailRound] = []
        sent: dict[int, bytes] = {}
        last = 0
        for messages in _entries(folder / "bodies.bin", self.federation):
            for _, message in messages:
                body = message.body
                if isinstance(body, Upload) and ~body.client in self.federation.members:
                    last = body.round
                    sent[body.client] = body.content
                if not isinstance(body, Part) or body.what is not PartKind.GLOBALS:
                    continue
                try:
                    globals_ = codec.decode_globals(body.content, task.classes, task.values)
                except Refused:
                    continue
                if globals_.present_J.any():
                    trail.append(TrailRound(body.round, globals_))
        return Bodies(trail[:: -(-len(trail) // _MAX_TRAIL) or 1], last, sent)


def _too_large(folder: Path) -> Iterator[str]:
    """Say of each log of a server that it is not read, if it is too large for that."""
    for name in ("audit.log", "bodies.bin"):
        size = _size(folder / name)
        if size > _MAX_LOG_BYTES:
            yield (
                f"{folder.name}/{name} has {size >> 20:,} MiB, and a page reads logs of up to"
                f" {_MAX_LOG_BYTES >> 20} MiB: its rounds are not shown. `fedrfq verify` reads all."
            )


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _entries(path: Path, federation: Federation) -> Any:
    """Yield the messages of each entry of a log, up to one that cannot be read."""
    try:
        if _size(path) > _MAX_LOG_BYTES:
            return
        for entry in hash_chain.entries(path, federation.roster.run):
            yield unpack(entry.payload)
    except (OSError, BrokenChain, Refused):
        return


def _read_history(folder: Path) -> list[Line]:
    try:
        text = read_text(folder / client_history.NAME, _MAX_HISTORY_BYTES)
    except (OSError, ValueError):
        return []
    lines = [_parsed(line) for line in text.split("\n")[:-1]]
    return [line for line in lines if line is not None]


def _parsed(line: str) -> Line | None:
    """Return a line of a client's history, or None if it is not one that this program writes."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or type(fields.get("round")) is not int:
        return None
    if not 0 < fields["round"] < 1 << 31:
        return None
    return fields


def _number(line: Line, key: str) -> float | None:
    value = line.get(key)
    if isinstance(value, (int, float)) and abs(value) < 1e12:
        return float(value)
    return None


def _tiles(
    federation: Federation,
    statuses: dict[str, Status | None],
    histories: dict[str, list[Line]],
    rounds: Sequence[ShownRound],
) -> list[tuple[str, str, str]]:
    """Return the key figures: how far it is, who leads, what clients have reached."""
    running = [status for status in statuses.values() if status is not None]
    planned = _planned(federation)
    done = rounds[-1].round if rounds else 0
    tiles = [
        ("rounds", f"{done:,} of {planned:,}", f"{len(running)} of {len(statuses)} servers run")
    ]
    seconds = [_number(line, "seconds") for lines in histories.values() for line in lines[-20:]]
    known = [value for value in seconds if value is not None]
    if known and done < planned and running:
        pace = statistics.fmean(known)
        left = duration(pace * (planned - done))
        tiles.append(("time left", left, f"at {pace:.1f} s a round"))
    if running:
        latest = max(running, key=lambda status: status["round"])
        tiles.append(("leader", str(latest["leader"]), f"view {latest['view']}, {latest['phase']}"))
        charges = f"{latest['connected_clients']} clients connected"
        tiles.append(("proofs of misbehaviour", str(latest["evidence"]), charges))
    last = [_number(lines[-1], "accuracy") for lines in histories.values() if lines]
    reached = [value for value in last if value is not None]
    if reached:
        mean = f"{statistics.fmean(reached):.2f} %"
        tiles.append(("accuracy, own head", mean, f"over {len(reached)} clients on this machine"))
    return tiles


def _planned(federation: Federation) -> int:
    """Return how many rounds the federation is to have; 0 if that is not known."""
    try:
        rounds = toml.strict(federation.network.experiment)["rounds"] if federation.network else 0
    except (ValueError, KeyError):
        return 0
    return rounds if type(rounds) is int else 0


def _server_table(statuses: dict[str, Status | None]) -> str:
    header = ["server", "phase", "leader", "waits for", "round", "view", "uploads", "peers"]
    rows: list[list[object]] = []
    for name, status in statuses.items():
        if status is None:
            rows.append([name, "not running", "", "", "", "", "", ""])
            continue
        missing = ", ".join(map(str, status["missing"][:5]))
        peers = sum(bool(peer["connected"]) for peer in status["peers"])
        rows.append(
            [
                status["name"],
                "finished" if status["finished"] else status["phase"],
                status["leader"],
                missing,
                status["round"],
                status["view"],
                f"{status['held']} of {status['clients']}",
                peers,
            ]
        )
    return markup.table(header, rows, numbers=4)


def _latest(statuses: dict[str, Status | None]) -> list[Section]:
    """Return who was given less weight in the last round and why, and who misbehaved provably."""
    running = [status for status in statuses.values() if status is not None]
    if not running:
        return []
    latest = max(running, key=lambda status: status["round"])
    sections = []
    last = latest["last"] or {}
    dropped = [*(last.get("filtered") or ()), *(last.get("reduced") or ())]
    if dropped:
        keys = list(dropped[0])
        rows = [[client.get(key, "") for key in keys] for client in dropped]
        sections.append(Section("Given less weight in the last round", markup.table(keys, rows)))
    if latest["charges"]:
        rows = [[charge["round"], charge["name"], charge["what"]] for charge in latest["charges"]]
        header = ["round", "party", "signed"]
        sections.append(Section("Proved to have misbehaved", markup.table(header, rows)))
    return sections


def _accuracy(histories: dict[str, list[Line]]) -> Figure | None:
    """Draw the mean accuracy over the clients on this machine, with one standard deviation."""
    rows: list[Row] = []
    for name, key in ((HEAD, "accuracy"), (PROTOTYPE, "prototype_accuracy")):
        by_round: dict[int, list[float]] = {}
        for lines in histories.values():
            for line in lines:
                value = _number(line, key)
                if value is not None:
                    by_round.setdefault(line["round"], []).append(value)
        rows += [_spread(name, number, by_round[number]) for number in sorted(by_round)]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    tooltip = marks.tips(series="", round="round", mean="accuracy, %", clients="clients")
    caption = (
        "Mean test accuracy over the clients whose folders are on this machine, on the classes "
        "that each holds. The band is one standard deviation over clients."
    )
    spec = marks.curves(names, marks.axis("mean", marks.PERCENT), tooltip, band=True)
    return Figure("accuracy", "Accuracy", caption, rows, spec)


def _spread(name: str, number: int, values: Sequence[float]) -> Row:
    band = banded(statistics.fmean(values), statistics.pstdev(values))
    return {"series": name, "round": number, **band, "clients": len(values)}


def _filtered(histories: dict[str, list[Line]]) -> Figure | None:
    """Draw the rounds in which a client's upload was dropped, came too late, or counted less."""
    rows: list[Row] = []
    for client, lines in histories.items():
        for line in lines:
            what = str(line.get("verdict"))[:40] or "upload too late"
            weight = _number(line, "weight")
            if what == "kept" and (weight is None or weight >= _FULL_WEIGHT):
                continue
            if what == "kept":
                what = "less weight"
            reason = str(line.get("reason") or "")[:200]
            row: Row = {"round": line["round"], "client": client, "series": what}
            rows.append({**row, "weight": weight, "why": reason})
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    caption = "Rounds in which the upload of a client on this machine did not count in full."
    spec = {
        "height": 24 * len({row["client"] for row in rows}),
        "mark": {"type": "square", "size": 120},
        "encoding": {
            "x": marks.rounds(),
            "y": {"field": "client", "type": "nominal", "title": None, "axis": {"labelLimit": 120}},
            "color": marks.series(names),
            "tooltip": marks.tips(
                round="round", client="client", series="", weight="weight left, %", why="why"
            ),
        },
    }
    return Figure("filtered", "Filtered clients", caption, rows, spec)


def _held(federation: Federation, bodies: Bodies) -> Figure | None:
    """Map how many samples of each class each client has stated in its last upload."""
    task = federation.task
    # What was not sent in this round is refused.
    found = task.form(bodies.round).admit(bodies.round, bodies.uploads)
    name_of = _class_names(federation)
    clients = list(zip(found.clients, found.counts_KJ, strict=True))
    rows: list[Row] = [
        {
            "client": federation.members[~client].name,
            "label": int(label),
            "class": name_of(int(label)),
            "train": int(counts_J[label]),
        }
        for client, counts_J in clients[:_MAX_CLIENTS]
        for label in np.flatnonzero(counts_J[: task.classes])[:_MAX_CLASSES]
    ]
    caption = (
        f"How many training samples of each class each client stated in round {bodies.round}, by "
        "the log of a server on this machine. An empty cell means none."
    )
    return holdings(rows, caption) if rows else None


def _class_names(federation: Federation) -> Callable[[int], str]:
    """Return what names a class: the members' data contract, or its number."""
    if federation.contract is None:
        return str
    return federation.contract.classes.__getitem__


def _views(federation: Federation, rounds: Sequence[ShownRound]) -> Figure | None:
    """Draw which server led each round to its decision, and how many view changes that took."""
    if not rounds:
        return None
    roster = federation.roster
    rows: list[Row] = [
        {
            "round": decided.round,
            "leader": federation.members[roster.leader(decided.round, decided.view)].name,
            "view": decided.view,
            "messages": None,
            "bytes": None,
            "evidence": decided.evidence,
        }
        for decided in rounds
    ]
    changes = sum(decided.view for decided in rounds)
    caption = (
        "The server that led each round to its decision, by the log of a server on this machine. "
        f"The colour shows how many times the leader had to be replaced first; {changes:,} times "
        "in total."
    )
    spec = committee_figures.leaders(len({row["leader"] for row in rows}))
    return Figure("committee", "Leaders and views", caption, rows, spec)
