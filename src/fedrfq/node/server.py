"""A server of a federation as a process: the replica, on its folder's log, its connections, and a page to look at it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import signal
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedrfq.consensus.events import Decided, Outcome, Submit, Waiting
from fedrfq.consensus.messages import Cert, Fetch, Message, Part, PartKind, ViewChange
from fedrfq.consensus.rejoin import lost
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import reconfigurable
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.node.driver import Driver
from fedrfq.node.ended_runs import RUN, EndedRuns
from fedrfq.node.logs import hear, say
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity, load
from fedrfq.node.membership.proposal import pending
from fedrfq.node.ops import status
from fedrfq.node.ops.prometheus import metrics
from fedrfq.node.ops.status_tracker import StatusTracker
from fedrfq.node.ops.web import WebPage, WebServer
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.compaction import LogCompactor
from fedrfq.node.storage.party_folder import FEDERATION, STATUS
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from fedrfq.node.transport.links import Links

_DEPART_S = 5.0  # that a run which was succeeded waits for parties that leave
_GARBAGE = 50_000  # new objects until cycles are looked for: a round of a thousand clients, none of whose messages is one
# how long, at most, an ended run's server waits for the others, and how often it looks
_LINGER_S = 30.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class ServerOptions:
    """`rejoin`: the log is lost or damaged; `listen`: elsewhere than federation.toml says; `until_done`: end with the run."""

    rejoin: bool = False
    listen: tuple[str, int] | None = None
    status_port: int = 0
    until_done: bool = False


class Server:
    """From what its folder holds until it is told to stop. Made in a running loop."""

    def __init__(self, identity: Identity, options: ServerOptions) -> None:
        self._identity = identity
        self._charter = identity.federation
        self._options = options
        application = reconfigurable(self._charter, _heritage(identity))
        self._rules = Rules(self._charter.roster)
        self._store = _opened(identity, self._rules, options.rejoin)
        self._chronicle = AuditWriter(identity.folder, self._charter)
        self._chronicle.recover(self._store.messages)
        self._replica = Replica(
            self._rules, identity.party, identity.signer, application, self._store.messages
        )
        self._seen = StatusTracker(
            identity, self._replica, self._store, epochs.rounds_left(identity)
        )
        self._archive = EndedRuns(identity)
        self._links = Links(identity, self._hear, bind=options.listen)
        couriers = self._charter.carriers
        self._driver = Driver(
            self._replica, identity.party, self._charter.roster, self._store, self._links, couriers
        )
        self._compacting = LogCompactor(self._store, self._chronicle)
        self._told = asyncio.Event()
        self.told = False  # to stop, by a signal
        self.ended: tuple[bytes, bytes] | None = (
            None  # how the run ended, and the federation.toml that takes its place
        )
        self._listen_to_all()

    def _listen_to_all(self) -> None:
        driver = self._driver
        driver.last_round = self._seen.rounds
        driver.answer = self._certificate
        driver.leader = lambda: self._replica.leader
        driver.on_kept = self._kept
        driver.on_decided = self._decided
        driver.on_accused = self._accused
        driver.on_waiting = self._waiting
        driver.on_failed = self._failed
        self._links.on_peer = self._peer

    async def run(self) -> None:
        """Until SIGTERM or SIGINT, or the end of the run if that is asked for; then all is written and said goodbye."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        web = WebServer(
            {"/status": self._status, "/metrics": self._metrics, "/healthz": self._health}
        )
        try:
            await self._start(web)
            await self._until_told()
        finally:
            say("stopping", round=self._replica.round)
            await self._stop(web)
        say("stopped")

    def stop(self) -> None:
        """As soon as it is safe."""
        self._told.set()

    def _signalled(self) -> None:
        self.told = True
        self.stop()

    async def _start(self, web: WebServer) -> None:
        port = await web.start(self._options.status_port)
        write_atomically(
            self._identity.folder / STATUS, json.dumps({"port": port, "pid": os.getpid()}).encode()
        )
        try:
            await self._links.start()
        except OSError as error:
            where = f"cannot listen on {self._address()} ({error.strerror})"
            raise UserError(
                f"{where}: is it taken, or not this host's? --listen takes another"
            ) from error
        self._driver.start()
        self._greet(port)
        self._go_on()

    def _greet(self, port: int) -> None:
        run = self._charter.roster.run.hex()
        (host, bound) = self._links.address
        say(
            "started",
            name=self._identity.member.name,
            run=run,
            listen=f"{host}:{bound}",
            status_port=port,
        )
        if self._store.dropped:
            say("a flush that never ended was dropped", "warning", log=self._store.dropped)
        if self._replica.silent:
            say("abstaining until enough rounds have passed", "warning", round=self._replica.round)

    def _address(self) -> str:
        listen = self._options.listen
        if listen:
            return f"{listen[0]}:{listen[1]}"
        return self._identity.member.address

    async def _until_told(self) -> None:
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._told.wait())]
        if self._options.until_done:
            waits.append(asyncio.ensure_future(self._done()))
        await asyncio.wait([*waits, self._driver.ended], return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if self._driver.ended.done():
            self._driver.ended.result()  # what the replica died of

    async def _done(self) -> None:
        """The run has ended, and all who are here know it; or they take too long."""
        while not self._seen.finished:
            await asyncio.sleep(_LOOK_S)
        waited = 0.0
        while waited < _LINGER_S and not self._all_know():
            await asyncio.sleep(_LOOK_S)
            waited += _LOOK_S

    def _all_know(self) -> bool:
        """Clients leave when they have the last result; servers speak of the round after."""
        return all(
            party >= 0 and self._driver.heard.get(party, 0) > self._seen.decided
            for party in self._links.connected()
        )

    async def _depart(self, pinned: set[bytes]) -> None:
        """Stop, once those whom the next run will not let in with the certificates they have know how this one ended."""
        waited = 0.0
        while waited < _DEPART_S and any(
            self._charter.members[party].certificate not in pinned
            for party in self._links.connected()
        ):
            await asyncio.sleep(_LOOK_S)
            waited += _LOOK_S
        self.stop()

    async def _stop(self, web: WebServer) -> None:
        self._driver.stop()
        await self._links.stop()
        await web.stop()
        self._store.close()
        self._chronicle.close()
        self._archive.close()
        (self._identity.folder / STATUS).unlink(missing_ok=True)

    # What happens

    def _hear(self, peer: int, data: bytes) -> None:
        """A frame: of this run, or of one that is over and that the peer was away for the end of."""
        if (run := data[RUN]) in self._archive:
            for to, message in self._archive.answer(peer, run, data):
                self._links.send(to, message.wire)
        else:
            self._driver.hear(peer, data)

    def _go_on(self) -> None:
        """With the next round: moving what the operator has approved; or with the next run, if this one is over."""
        try:
            if self._replica.over:
                self._succeed()
            elif (change_proposal := pending(self._identity)) is not None:
                self._driver.give(Submit(self._replica.round, change_proposal))
        except UserError as error:
            self._driver.fail(str(error))

    def _succeed(self) -> None:
        certificate = self._replica.chain[self._replica.round - 1]
        outcome = self._replica.outcome
        assert outcome is not None
        text = codec.successor_in(outcome.verdicts)
        if epochs.takes_part(self._identity, text):
            say("the federation is changed", round=certificate.record.round)
            self.ended = epochs.encode_last(self._rules, certificate, outcome), text
            self._departing = asyncio.ensure_future(
                self._depart(set(Federation.read(text.decode(), FEDERATION).holders))
            )
        else:
            say(
                "the federation goes on without this server",
                "warning",
                round=certificate.record.round,
            )

    def _kept(self, message: Message) -> None:
        self._chronicle.note(message)
        body = message.body
        if isinstance(body, ViewChange):
            late = status.name(
                self._charter, self._charter.roster.leader(body.round, body.view - 1)
            )
            hear("asking for another view", "warning", round=body.round, view=body.view, late=late)

    def _decided(self, decided: Decided) -> None:
        self._chronicle.decided(decided)
        loop = asyncio.get_running_loop()
        if decided.outcome is not None:
            loop.call_soon(self._go_on)
        if not self._seen.decide(decided):
            return
        last = self._seen.last
        assert last is not None
        filtered = {one.name: one.score for one in last.filtered or ()}
        say(
            "decided",
            round=last.round,
            view=last.view,
            value=last.value,
            clients=last.clients,
            filtered=filtered,
        )
        if self._seen.finished:
            say("finished", round=last.round)
        if self._compacting.due:
            loop.call_soon(self._compact)  # once all of this batch is written down

    def _compact(self) -> None:
        try:
            self._compacting.compact()
        except UserError as error:
            self._driver.fail(str(error))

    def _accused(self, evidence: Message) -> None:
        charge = self._seen.accuse(evidence)
        hear("evidence", "warning", round=charge.round, against=charge.name, signed=charge.what)

    def _waiting(self, waiting: Waiting) -> None:
        self._seen.wait(waiting)
        if not self._seen.finished:
            facts = {"held": waiting.held, "minimum": waiting.minimum}
            say("too few clients have sent", "warning", round=self._replica.round, **facts)

    def _failed(self, why: str) -> None:
        say("nothing can be written: no more votes", "error", why=why)

    def _peer(self, peer: int, here: bool) -> None:
        hear(
            "connected" if here else "disconnected",
            "debug" if peer < 0 else "info",
            peer=status.name(self._charter, peer),
        )
        if not here:
            self._driver.lost(peer)
        elif peer in self._charter.carriers:
            self._links.send(peer, self._standing().wire)

    def _standing(self) -> Message:
        """Where this server stands: the last round whose decision is on the disk, or none. Couriers are greeted so."""
        found = self._replica.chain.get(self._seen.decided)
        return self._rules.unsigned(
            Part(self._seen.decided, PartKind.STANDING, found.write() if found is not None else b"")
        )

    def _certificate(self, fetch: Fetch) -> Message | None:
        """Of a round whose decision was written down: all that can be given out when nothing can be written."""
        if fetch.round <= self._seen.decided:
            found = self._replica.chain.get(fetch.round)
        else:
            found = None
        if found is not None and fetch.what == PartKind.CERT:
            return self._rules.unsigned(Cert(fetch.round, found))
        return None

    # What is shown

    def _status(self) -> WebPage:
        return WebPage(
            to_json(asdict(self._seen.board(self._driver, self._links))) + "\n", "application/json"
        )

    def _metrics(self) -> WebPage:
        return WebPage(
            metrics(self._seen, self._driver, self._links),
            "text/plain; version=0.0.4; charset=utf-8",
        )

    def _health(self) -> WebPage:
        failed = self._driver.failed
        if failed is None:
            return WebPage("ok\n")
        return WebPage(f"{failed}\n", code=503)


def _heritage(identity: Identity) -> Outcome | None:
    found = epochs.inherited_outcome(identity.folder, identity.federation)
    if found is not None and not found.state:
        raise UserError(
            f"{identity.folder / epochs.PAST} is a client's, without the detector's memory: copy a server's"
        )
    return found


def _opened(identity: Identity, rules: Rules, rejoin: bool) -> WriteAheadLog:
    """The log. One set aside is not begun anew without a word: the first of a server that rejoins is that it does."""
    folder = identity.folder
    if rejoin:
        mark = lost(rules, secrets.token_bytes(32))
    else:
        mark = None
    if mark is not None:
        say("rejoining", "warning", log=f"set aside as {WriteAheadLog.reset(folder).name}")
    store = WriteAheadLog.open(folder, rules.run)
    if mark is not None:
        store.append(mark)
        store.flush()
    elif not store.messages and any(folder.glob("log.damaged-*")):
        store.close()
        raise UserError(
            f"the log of {folder} was set aside, and none was begun since: `fedrfq server {folder} --rejoin`"
        )
    return store


async def serve(identity: Identity, options: ServerOptions) -> None:
    if not identity.is_server:
        raise UserError(
            f"{identity.folder} is a {identity.role}'s folder: `fedrfq client DIR --data …` is for a client's"
        )
    gc.set_threshold(_GARBAGE)
    while True:
        server = Server(identity, options)
        await server.run()
        if server.ended is None:
            return
        epochs.activate_successor(identity.folder, *server.ended)
        if server.told:
            return
        identity = load(identity.folder)
        options = replace(options, rejoin=False)
