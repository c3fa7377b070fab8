"""A client of a federation as a process: it trains, signs its upload, sends it to every server, and takes a result only with
its certificate. Whatever ends it, it goes on from its folder: what it signed is sent again, what it learnt is not lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Decided, LeftOut, Outcome
from fedrfq.consensus.messages import Certificate, PartKind
from fedrfq.consensus.rules import Rules
from fedrfq.data import DATASETS
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.federation import codec
from fedrfq.files import toml
from fedrfq.node import hosting, local_dataset
from fedrfq.node.driver import Driver
from fedrfq.node.learner import Learner, News
from fedrfq.node.logs import hear, say
from fedrfq.node.membership import epochs, identity
from fedrfq.node.membership.identity import Identity
from fedrfq.node.ops import status
from fedrfq.node.participant import Accuracies, Participant
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.client_history import ClientHistory, HistoryLine
from fedrfq.node.storage.compaction import LogCompactor
from fedrfq.node.storage.write_ahead_log import DamagedLog, WriteAheadLog
from fedrfq.node.transport.links import Links
from fedrfq.prototypes.fixed_point import Globals

MODEL = "model"
WANTS = (PartKind.GLOBALS, PartKind.VERDICTS)


@dataclass(frozen=True)
class ClientEnded:
    """How far the client came: after which round, whether the run was over with it, and the federation that follows."""

    round: int
    finished: bool
    accuracies: Accuracies | None
    successor: bytes = b""


class ClientProcess:
    """One run of one client. Made in a running loop."""

    def __init__(
        self, own: Identity, participant: Participant, on_round: Callable[[HistoryLine], None]
    ) -> None:
        self._own = own
        self._charter = own.federation
        self._participant = participant
        self._rules = Rules(self._charter.roster)
        self._store = _opened(own)
        self._chronicle = AuditWriter(own.folder, self._charter)
        self._chronicle.recover(self._store.messages)
        self._client = Client(self._rules, ~own.party, own.signer, self._store.messages, WANTS)
        self._links = Links(own, lambda peer, data: self._driver.hear(peer, data))
        self._driver = Driver(
            self._client, own.party, self._charter.roster, self._store, self._links
        )
        self._driver.on_decided = self._decided
        self._driver.on_failed = self._failed
        self._links.on_peer = self._peer
        diary = ClientHistory(own.folder, self._charter.roster.run.hex())
        self._learner = Learner(participant, diary, self._driver.give)
        self._learner.on_round = on_round
        self._compacting = LogCompactor(self._store, self._chronicle)
        self._rounds = epochs.rounds_left(own)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told = asyncio.Event()

    async def run(self, once: bool) -> ClientEnded:
        """Until the run is over, or it is told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._told.set)
        try:
            await self._start()
            finished = await self._until_told(once)
        finally:
            await self._stop()
        last = self._client.last
        if finished:
            following = codec.successor_in(self._client.parts.get(PartKind.VERDICTS, b""))
        else:
            following = b""
        return ClientEnded(
            0 if last is None else last.record.round, finished, self._learner.accuracies, following
        )

    def turn(self) -> None:
        """After the end of a run that has a successor: the folder becomes that one's."""
        last = self._client.last
        parts = self._client.parts
        assert last is not None
        outcome = Outcome(parts[PartKind.GLOBALS], parts[PartKind.VERDICTS], b"")
        packed = epochs.encode_last(self._rules, last, outcome)
        epochs.activate_successor(self._own.folder, packed, codec.successor_in(outcome.verdicts))

    async def _start(self) -> None:
        await self._links.start()
        self._driver.start()
        run = self._charter.roster.run.hex()
        say(
            "started",
            name=self._own.member.name,
            run=run,
            round=self._client.round,
            rounds=self._rounds,
        )
        last = self._client.last
        parts = self._client.parts
        if last is None:
            self._learner.hear(News(0, self._inherited(), last=not self._rounds))
        elif all(what in parts for what in WANTS):
            self._learner.hear(self._news(last, parts[PartKind.GLOBALS], parts[PartKind.VERDICTS]))

    async def _until_told(self, once: bool) -> bool:
        """Whether the run was over before."""
        learning = asyncio.ensure_future(self._learner.learn(once))
        told = asyncio.ensure_future(self._told.wait())
        waits: set[asyncio.Future[Any]] = {learning, told, self._driver.ended, self._broken}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
            learning.cancel()
            self._participant.interrupt()
        for ended in done:
            ended.result()  # or what it died of
        return learning in done and learning.result().last

    async def _stop(self) -> None:
        self._driver.stop()
        await self._links.stop()
        self._store.close()
        self._chronicle.close()

    # What happens

    def _decided(self, decided: Decided) -> None:
        self._chronicle.decided(decided)
        if decided.outcome is None:
            return
        news = self._news(decided.certificate, decided.outcome.globals_, decided.outcome.verdicts)
        if not news.verdict:
            self._driver.give(LeftOut(news.round))
        self._learner.hear(news)
        if self._compacting.due:
            asyncio.get_running_loop().call_soon(
                self._compact
            )  # once all of this batch is written down

    def _compact(self) -> None:
        try:
            self._compacting.compact()
        except UserError as error:
            self._driver.fail(str(error))

    def _failed(self, why: str) -> None:
        if not self._broken.done():
            self._broken.set_exception(UserError(why))

    def _peer(self, peer: int, here: bool) -> None:
        hear("connected" if here else "disconnected", peer=status.name(self._charter, peer))
        if here:
            self._driver.found()

    # What it means

    def _inherited(self) -> Globals:
        """What the federation knows before the first round."""
        task = self._charter.task
        heritage = epochs.inherited_outcome(self._own.folder, self._charter)
        if heritage is None:
            return Globals.none(task.classes, task.values)
        return codec.decode_globals(heritage.globals_, task.classes, task.values)

    def _news(self, certificate: Certificate, globals_: bytes, verdicts: bytes) -> News:
        task = self._charter.task
        number = certificate.record.round
        clients, verdict = codec.decode_verdicts_without_successor(verdicts)
        last = number >= self._rounds or bool(codec.successor_in(verdicts))
        found = codec.decode_globals(globals_, task.classes, task.values)
        if ~self._own.party not in clients:
            return News(number, found, last=last)
        row = clients.index(~self._own.party)
        return News(
            number,
            found,
            "kept" if verdict.kept_K[row] else "filtered",
            int(verdict.score_K[row]),
            last,
        )


def _nothing(_: HistoryLine) -> None:
    """Nobody watches."""


def _opened(own: Identity) -> WriteAheadLog:
    hosting.check_own(own.folder)
    try:
        return WriteAheadLog.open(own.folder, own.federation.roster.run)
    except DamagedLog as error:
        anew = "a client begins anew once log/, audit.log and bodies.bin are moved away"
        raise UserError(f"{str(error).split(';', maxsplit=1)[0]}; {anew}") from error


def participant(own: Identity, data: str, device: torch.device) -> Participant:
    """The learning of the client whose folder this is, on `data`: a dataset's name, or a path."""
    if own.is_server:
        raise UserError(f"{own.folder} is a server's folder: `fedrfq server {own.folder}`")
    if own.role == "courier":
        raise UserError(
            f"{own.folder} is a courier's folder: it carries clients' uploads, and has no data"
        )
    experiment = _experiment(own)
    run = own.federation.roster.run.hex()
    client = _place(own, experiment, data)
    found = local_dataset.find(experiment, client, own.federation.task.classes, data)
    before = epochs.rounds_before(own.folder)
    return Participant(
        experiment, client, found, device, own.folder / MODEL, run, ~own.party, before
    )


def _place(own: Identity, experiment: Experiment, data: str) -> int:
    """Who the client is in the experiment: its number in the federation's first run. Who came later has no share of the
    experiment's data, and is for the rest like one of those who have."""
    federations = [run.federation for run in epochs.ended_epochs(own.folder)] + [own.federation]
    for client in range(len(federations[0].clients)):
        if federations[0].members[~client].name == own.member.name:
            return client
    if data in DATASETS:
        raise UserError(
            f"{own.member.name} came later and has no share of {data}: give its own samples, --data PATH"
        )
    return ~own.party % experiment.clients


def _experiment(own: Identity) -> Experiment:
    assert own.federation.network is not None
    return from_table(toml.strict(own.federation.network.experiment))


def attend(
    folder: Path,
    data: str,
    device: torch.device,
    once: bool = False,
    on_round: Callable[[HistoryLine], None] = _nothing,
) -> ClientEnded:
    """Take part in the federation of this folder, and in those that follow from it, to the end."""
    while True:
        epochs.complete_activation(folder)
        own = identity.load(folder)
        ended = asyncio.run(_attend(own, participant(own, data, device), once, on_round))
        if not ended.successor or once:
            return ended


async def _attend(
    own: Identity, learning: Participant, once: bool, on_round: Callable[[HistoryLine], None]
) -> ClientEnded:
    process = ClientProcess(own, learning, on_round)
    ended = await process.run(once)
    if ended.successor and not epochs.takes_part(own, ended.successor):
        say("the federation goes on without this client", "warning", round=ended.round)
        return replace(ended, successor=b"")
    if ended.successor:
        say("the federation is changed", round=ended.round)
        process.turn()
    return ended
