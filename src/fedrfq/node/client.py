"""A client of a federation as a process.

It trains, signs its upload, sends it to every server, and accepts a result only with its
certificate. However it ends, it resumes from its folder: what it signed is sent again, and what it
learned is not lost.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Decided, LeftOut, Outcome
from fedrfq.consensus.messages import Certificate, Message, PartKind, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.node import hosting
from fedrfq.node.client_learning import Prepare, check_revocable, nothing_to_prepare, participant
from fedrfq.node.driver.driver import Driver
from fedrfq.node.learner import Learner
from fedrfq.node.leaver import Leaver, check_unmarked, mark
from fedrfq.node.logs import log_event, log_peer_event
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity, load
from fedrfq.node.news import News
from fedrfq.node.obstacles import log_obstacles, log_other_runs
from fedrfq.node.ops import status
from fedrfq.node.ops.client_status import ClientTracker
from fedrfq.node.ops.prometheus import client_metrics
from fedrfq.node.ops.status_pages import StatusPages
from fedrfq.node.participant import ClientAccuracies, Participant
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.client_history import ClientHistory, HistoryLine
from fedrfq.node.storage.compaction import LogCompactor
from fedrfq.node.storage.write_ahead_log import DamagedLog, WriteAheadLog
from fedrfq.node.transport.budget import honest_sizes
from fedrfq.node.transport.links import Links
from fedrfq.prototypes.fixed_point import Globals

# What a client needs of a round's outcome; the detector's state is for servers.
WANTS = (PartKind.GLOBALS, PartKind.VERDICTS, PartKind.PUBLIC, PartKind.SUCCESSOR)


@dataclass(frozen=True)
class ClientEnded:
    """How far a client came: its last round, and whether the run ended with it.

    `successor` is the federation.toml that follows this run, or empty. `forgotten` says that a
    withdrawal of the client's statistics has counted.
    """

    round: int
    finished: bool
    accuracies: ClientAccuracies | None
    successor: bytes = b""
    forgotten: bool = False


class ClientProcess:
    """One client in one run. It is created in a running event loop.

    Without a participant it takes back the statistics that the client has sent.
    """

    def __init__(
        self,
        identity: Identity,
        participant: Participant | None,
        on_round: Callable[[HistoryLine, int], None],
        status_port: int = 0,
    ) -> None:
        self._identity = identity
        self._status_port = status_port
        self._federation = identity.federation
        self._rules = Rules(self._federation.roster)
        # The log first: it locks the folder, and what follows is restored from it.
        self._store = _open_log(identity)
        self._audit = AuditWriter(identity.folder, self._federation)
        self._audit.recover(self._store.messages)
        # What the federation knew before the first round of this run; None in its first run.
        self._inherited = epochs.inherited_outcome(identity.folder, self._federation)
        public = b""
        if self._inherited is not None:
            public = self._inherited.public
        party = identity.party
        self._client = Client(
            self._rules, ~party, identity.signer, self._store.messages, WANTS, public
        )
        self._links = Links(identity, lambda peer, data: self._driver.hear(peer, data))
        self._driver = Driver(
            self._client,
            party,
            self._federation.roster,
            self._store,
            self._links,
            sizes=honest_sizes(self._federation),
        )
        self._driver.on_decided = self._decided
        self._driver.on_failed = self._failed
        self._links.on_peer = self._peer
        log_obstacles(self._links, self._federation)
        log_other_runs(self._driver.admission, self._federation)
        self._on_round = on_round
        self._learner = self._make_learner(participant)
        self._compactor = LogCompactor(self._store, self._audit)
        self._rounds = epochs.rounds_left(identity)
        privacy = None
        if participant is not None:
            privacy = participant.privacy
        self._tracker = ClientTracker(identity, self._client, self._rounds, privacy)
        self._driver.flush.on_persisted = self._persisted
        self._signed: Upload | None = None  # the last upload that this client signed
        for message in self._store.messages:
            self._note_upload(message)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop_requested = asyncio.Event()

    def _make_learner(self, participant: Participant | None) -> Learner | Leaver:
        if participant is None:
            public = self._federation.task.public
            assert public is not None
            return Leaver(~self._identity.party, public, self._driver.give)
        history = ClientHistory(self._identity.folder, self._federation.roster.run.hex())
        learner = Learner(participant, history, self._driver.give, self._federation.pause_s)
        learner.on_round = self._completed
        learner.on_pause = self._pausing
        return learner

    async def run(self, once: bool) -> ClientEnded:
        """Run until the run has ended, or SIGTERM or SIGINT; with `once`, for one round."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop_requested.set)
        pages = StatusPages(
            self._identity.folder,
            lambda: self._tracker.status(self._driver, self._links),
            lambda: client_metrics(self._tracker, self._driver, self._links),
            lambda: self._driver.failed,
        )
        try:
            await self._start(pages)
            finished = await self._learn_until_stopped(once)
        finally:
            await self._stop(pages)
        last = self._client.last
        successor = b""
        if finished:
            successor = self._client.parts.get(PartKind.SUCCESSOR, b"")
        round_ = 0 if last is None else last.record.round
        if isinstance(self._learner, Leaver):
            return ClientEnded(round_, finished, None, successor, self._learner.forgotten)
        return ClientEnded(round_, finished, self._learner.accuracies, successor)

    def activate_successor(self) -> None:
        """Turn the folder into one of the successor; call this after the end of a run with one."""
        last = self._client.last
        parts = self._client.parts
        assert last is not None
        outcome = _outcome(parts)
        packed = epochs.encode_last(self._rules, last, outcome)
        epochs.activate_successor(self._identity.folder, packed, outcome.successor)

    async def _start(self, pages: StatusPages) -> None:
        port = await pages.start(self._status_port)
        await self._links.start()
        self._driver.start()
        log_event(
            "started",
            name=self._identity.member.name,
            run=self._federation.roster.run.hex(),
            round=self._client.round,
            rounds=self._rounds,
            status_port=port,
        )
        last = self._client.last
        parts = self._client.parts
        if last is None:
            self._learner.hear(self._start_news())
        # Otherwise the missing part of the last result is on its way.
        elif all(what in parts for what in WANTS):
            self._learner.hear(self._news(last, _outcome(parts)))

    async def _learn_until_stopped(self, once: bool) -> bool:
        """Learn, and tell whether the run ended before this client was told to stop."""
        learning = asyncio.ensure_future(self._learner.learn(once))
        stopping = asyncio.ensure_future(self._stop_requested.wait())
        waits: set[asyncio.Future[Any]] = {learning, stopping, self._driver.ended, self._broken}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            learning.cancel()
            # Cancelling does not reach the thread that trains.
            self._learner.interrupt()
        # Raises what any of them died of.
        for future in done:
            future.result()
        return learning in done and learning.result().last

    async def _stop(self, pages: StatusPages) -> None:
        # The driver before the links, and both before the files that they write to.
        self._driver.stop()
        await self._links.stop()
        await pages.stop()
        self._store.close()
        self._audit.close()

    # Callbacks

    def _decided(self, decided: Decided) -> None:
        self._audit.decided(decided)
        if decided.outcome is None:
            return
        news = self._news(decided.certificate, decided.outcome)
        if not news.verdict:
            self._driver.give(LeftOut(news.round))
        self._learner.hear(news)
        # In a later turn, when all effects of this batch have been carried out.
        if self._compactor.due:
            asyncio.get_running_loop().call_soon(self._compact)

    def _persisted(self, message: Message) -> None:
        self._tracker.persisted(message)
        self._note_upload(message)

    def _note_upload(self, message: Message) -> None:
        if isinstance(message.body, Upload):
            self._signed = message.body

    def _completed(self, line: HistoryLine) -> None:
        self._tracker.completed(line)
        self._on_round(line, self._rounds)

    def _pausing(self, until: datetime) -> None:
        self._tracker.pauses_until = until

    def _compact(self) -> None:
        try:
            self._compactor.compact()
        except UserError as error:
            self._driver.fail(str(error))

    def _failed(self, why: str) -> None:
        if not self._broken.done():
            self._broken.set_exception(UserError(why))

    def _peer(self, peer: int, is_connected: bool) -> None:
        event = "connected" if is_connected else "disconnected"
        log_peer_event(event, peer=status.name(self._federation, peer))
        if is_connected:
            self._driver.peer_joined()

    # Results

    def _start_news(self) -> News:
        """Return what the federation knows before the first round of this run."""
        task = self._federation.task
        globals_ = Globals.none(task.classes, task.values)
        public = None
        if self._inherited is not None:
            globals_ = codec.decode_globals(self._inherited.globals_, task.classes, task.values)
            public = codec.decode_public(self._inherited.public, task.public)
        return News(0, globals_, last=not self._rounds, public=public)

    def _news(self, certificate: Certificate, outcome: Outcome) -> News:
        task = self._federation.task
        number = certificate.record.round
        clients, verdict = codec.decode_verdicts(outcome.verdicts, task.classes)
        news = News(
            number,
            codec.decode_globals(outcome.globals_, task.classes, task.values),
            last=number >= self._rounds or certificate.record.ends_run(),
            public=codec.decode_public(outcome.public, task.public),
        )
        client = ~self._identity.party
        if client not in clients:
            return news
        counted = b""
        if self._signed is not None and self._signed.round == number:
            counted = self._signed.content
        row = clients.index(client)
        word = "kept" if verdict.kept_K[row] else "filtered"
        return replace(
            news,
            verdict=word,
            score=int(verdict.score_K[row]),
            weight=100 * verdict.share(row),
            reason=verdict.why(row, self._federation.class_names),
            counted=counted,
        )


def _outcome(parts: Mapping[PartKind, bytes]) -> Outcome:
    """Return the outcome as a client knows it: without the detector's state."""
    return Outcome(
        parts[PartKind.GLOBALS],
        parts[PartKind.VERDICTS],
        b"",
        parts[PartKind.PUBLIC],
        parts[PartKind.SUCCESSOR],
    )


def _ignore(_: HistoryLine, __: int) -> None:
    """Do nothing: nobody watches."""


def _open_log(identity: Identity) -> WriteAheadLog:
    hosting.check_own(identity.folder)
    try:
        return WriteAheadLog.open(identity.folder, identity.federation.roster.run)
    except DamagedLog as error:
        # The rest of that message is for servers. A client may start over: it has no votes that it
        # could contradict, and its model's file remembers the round it was last trained in.
        damage = str(error).split(";", maxsplit=1)[0]
        raise UserError(
            f"{damage}; move log/, audit.log and bodies.bin away, and this client starts over"
        ) from error


def attend(
    folder: Path,
    data: str,
    device: torch.device,
    once: bool = False,
    on_round: Callable[[HistoryLine, int], None] = _ignore,
    status_port: int = 0,
    prepare: Prepare = nothing_to_prepare,
    classes: Sequence[str] = (),
    renew: bool = False,
) -> ClientEnded:
    """Take part in the federation of this folder, and in its successors, to the end.

    `prepare` is called with the experiment and the data before a model is made. With `renew` the
    client's statistics are replaced by those of its present samples.
    """
    check_unmarked(folder)
    while True:
        epochs.complete_activation(folder)
        identity = load(folder)
        learning = participant(identity, data, device, prepare, classes, renew)
        # Every run begins with an exchange of statistics, so the next need not be told.
        renew = False
        ended = asyncio.run(_attend(identity, learning, once, on_round, status_port))
        if not ended.successor or once:
            return ended


def take_back(folder: Path, status_port: int = 0) -> ClientEnded:
    """Take back the statistics of this folder's client, and return once that is certified."""
    while True:
        epochs.complete_activation(folder)
        identity = load(folder)
        if identity.role != "client":
            raise UserError(f"{folder} is a {identity.role}'s folder: only a client has statistics")
        check_revocable(identity)
        # Before anything is sent: from now on the client must not be started as usual.
        mark(folder, "requested")
        ended = asyncio.run(_attend(identity, None, False, _ignore, status_port))
        if ended.forgotten:
            mark(
                folder,
                f"forgotten in round {ended.round} of run {identity.federation.roster.run.hex()}",
            )
        if ended.forgotten or not ended.successor:
            return ended


async def _attend(
    identity: Identity,
    learning: Participant | None,
    once: bool,
    on_round: Callable[[HistoryLine, int], None],
    status_port: int,
) -> ClientEnded:
    process = ClientProcess(identity, learning, on_round, status_port)
    ended = await process.run(once)
    if not ended.successor:
        return ended
    if not epochs.takes_part(identity, ended.successor):
        log_event("the federation goes on without this client", "warning", round=ended.round)
        return replace(ended, successor=b"")
    log_event("the federation has changed", round=ended.round)
    process.activate_successor()
    return ended
