"""A federation's server as a process: a replica with its log, connections and status page."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
from dataclasses import dataclass, replace
from typing import Any

from fedrfq.consensus.events import Decided, Outcome, Propose, Waiting
from fedrfq.consensus.messages import Cert, Fetch, Message, Part, PartKind, ViewChange, run_of
from fedrfq.consensus.rejoin import lost_log_mark
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import decisions
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import reconfigurable
from fedrfq.node.driver.driver import Driver
from fedrfq.node.ended_runs import EndedRuns
from fedrfq.node.logs import log_event, log_peer_event
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity, load
from fedrfq.node.membership.proposal import pending
from fedrfq.node.obstacles import log_obstacles, log_other_runs
from fedrfq.node.ops import status
from fedrfq.node.ops.prometheus import metrics
from fedrfq.node.ops.status import LastRound
from fedrfq.node.ops.status_pages import StatusPages
from fedrfq.node.ops.status_tracker import StatusTracker
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.compaction import LogCompactor
from fedrfq.node.storage.party_folder import FEDERATION
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from fedrfq.node.transport.budget import honest_sizes
from fedrfq.node.transport.links import Links

# How long a run that has a successor waits for the parties that leave the federation.
_DEPART_S = 5.0
# How long, at most, a server that ends with its run waits for the others, and how often it looks.
_LINGER_S = 30.0
_LOOK_S = 0.1
# New objects until Python looks for reference cycles. A round of a thousand clients makes about as
# many, and none of its messages is part of a cycle.
_GC_THRESHOLD = 50_000


@dataclass(frozen=True)
class ServerOptions:
    """How a server is started.

    `rejoin` says that the log is lost or damaged, `listen` is an address other than the one in
    federation.toml, and `until_done` ends the server with the run.
    """

    rejoin: bool = False
    listen: tuple[str, int] | None = None
    status_port: int = 0
    until_done: bool = False


class Server:
    """One server in one run, from what its folder holds. It is created in a running event loop.

    `signalled` says that SIGTERM or SIGINT has come. `ended` is set when the run has a successor in
    which this server takes part: the encoded end of the run, and the successor's federation.toml.
    """

    def __init__(self, identity: Identity, options: ServerOptions) -> None:
        self._identity = identity
        self._federation = identity.federation
        self._options = options
        decisions.check_server(self._federation.decisions, str(identity.folder / FEDERATION))
        application = reconfigurable(self._federation, _inherited(identity))
        self._rules = Rules(self._federation.roster)
        # The log first: it locks the folder, and everything after it is restored from it.
        self._store = _open_log(identity, self._rules, options.rejoin)
        self._audit = AuditWriter(identity.folder, self._federation)
        self._audit.recover(self._store.messages)
        self._replica = Replica(
            self._rules, identity.party, identity.signer, application, self._store.messages
        )
        self._tracker = StatusTracker(
            identity, self._replica, self._store, epochs.rounds_left(identity)
        )
        self._ended_runs = EndedRuns(identity)
        self._links = Links(
            identity, lambda peer, data: self._driver.hear(peer, data), bind=options.listen
        )
        self._driver = Driver(
            self._replica,
            identity.party,
            self._federation.roster,
            self._store,
            self._links,
            couriers=self._federation.courier_numbers,
            sizes=honest_sizes(self._federation),
        )
        self._compactor = LogCompactor(self._store, self._audit)
        self._stop_requested = asyncio.Event()
        self.signalled = False
        self.ended: tuple[bytes, bytes] | None = None
        self._set_callbacks()

    def _set_callbacks(self) -> None:
        driver = self._driver
        driver.admission.last_round = self._tracker.rounds
        driver.admission.take_elsewhere = self._serve_ended_run
        driver.answer = self._certificate
        driver.leader = lambda: self._replica.leader
        driver.flush.on_persisted = self._persisted
        driver.on_decided = self._decided
        driver.on_accused = self._accused
        driver.on_waiting = self._waiting
        driver.on_failed = self._failed
        self._links.on_peer = self._peer
        log_obstacles(self._links, self._federation)
        log_other_runs(self._driver.admission, self._federation)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, or the end of the run if that was asked for."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        pages = StatusPages(
            self._identity.folder,
            lambda: self._tracker.status(self._driver, self._links),
            lambda: metrics(self._tracker, self._driver, self._links),
            lambda: self._driver.failed,
        )
        try:
            await self._start(pages)
            await self._serve_until_stopped()
        finally:
            log_event("stopping", round=self._replica.round)
            await self._stop(pages)
        log_event("stopped")

    def stop(self) -> None:
        """Ask the server to stop; `run` returns once everything is written and sent."""
        self._stop_requested.set()

    def _signalled(self) -> None:
        self.signalled = True
        self.stop()

    async def _start(self, pages: StatusPages) -> None:
        port = await pages.start(self._options.status_port)
        try:
            await self._links.start()
        except OSError as error:
            reason = error.strerror
            # asyncio's own text repeats the address; an unknown host has no number of the system's.
            if error.errno is not None and error.errno > 0:
                reason = os.strerror(error.errno)
            raise UserError(
                f"cannot listen on {self._address()} ({reason}): if it is in use, stop the"
                " program that uses it; if it is not an address of this machine, use --listen"
            ) from error
        self._driver.start()
        self._say_started(port)
        self._continue()

    def _say_started(self, port: int) -> None:
        host, bound = self._links.address
        log_event(
            "started",
            name=self._identity.member.name,
            run=self._federation.roster.run.hex(),
            listen=f"{host}:{bound}",
            status_port=port,
        )
        if self._store.dropped:
            log_event("dropped an interrupted flush", "warning", log=self._store.dropped)
        if self._replica.silent:
            log_event(
                "abstaining until enough rounds have passed", "warning", round=self._replica.round
            )

    def _address(self) -> str:
        listen = self._options.listen
        if listen:
            return f"{listen[0]}:{listen[1]}"
        return self._identity.member.address

    async def _serve_until_stopped(self) -> None:
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._stop_requested.wait())]
        if self._options.until_done:
            waits.append(asyncio.ensure_future(self._wait_until_done()))
        await asyncio.wait([*waits, self._driver.ended], return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        # Raises what the replica died of.
        if self._driver.ended.done():
            self._driver.ended.result()

    async def _wait_until_done(self) -> None:
        """Wait until the run has ended and all connected parties know it, or take too long."""
        while not self._tracker.finished:
            await asyncio.sleep(_LOOK_S)
        waited = 0.0
        while waited < _LINGER_S and not self._all_know():
            await asyncio.sleep(_LOOK_S)
            waited += _LOOK_S

    def _all_know(self) -> bool:
        # Clients leave when they have the last result; servers mention the round after it.
        return all(
            party >= 0 and self._driver.admission.heard.get(party, 0) > self._tracker.decided
            for party in self._links.connected()
        )

    async def _depart(self, pinned: set[bytes]) -> None:
        """Stop once the parties that the next run will not let in know how this one ended.

        They can only learn it now: the next run pins other certificates.
        """
        waited = 0.0
        while waited < _DEPART_S and any(
            self._federation.members[party].certificate not in pinned
            for party in self._links.connected()
        ):
            await asyncio.sleep(_LOOK_S)
            waited += _LOOK_S
        self.stop()

    async def _stop(self, pages: StatusPages) -> None:
        # The driver before the links, and both before the files that they write to.
        self._driver.stop()
        await self._links.stop()
        await pages.stop()
        self._store.close()
        self._audit.close()
        self._ended_runs.close()

    # Callbacks

    def _serve_ended_run(self, peer: int, data: bytes) -> bool:
        """Answer a frame of an ended run whose end the peer has missed; tell whether it is one."""
        run = run_of(data)
        if run is None or run not in self._ended_runs:
            return False
        for to, message in self._ended_runs.answer(peer, run, data):
            self._links.send(to, message.wire)
        return True

    def _continue(self) -> None:
        """Propose the change the operator approved, if any; or end a run with a successor."""
        try:
            if self._replica.over:
                self._end_run()
                return
            change_proposal = pending(self._identity)
            if change_proposal is not None:
                self._driver.give(Propose(self._replica.round, change_proposal))
        except UserError as error:
            self._driver.fail(str(error))

    def _end_run(self) -> None:
        certificate = self._replica.chain[self._replica.round - 1]
        round_ = certificate.record.round
        outcome = self._replica.outcome
        assert outcome is not None
        text = outcome.successor
        if not epochs.takes_part(self._identity, text):
            # It stays up and answers questions until its operator stops it.
            log_event("the federation goes on without this server", "warning", round=round_)
            return
        log_event("the federation has changed", round=round_)
        self.ended = epochs.encode_last(self._rules, certificate, outcome), text
        pinned = set(Federation.read(text.decode(), FEDERATION).party_by_certificate)
        # The loop holds tasks only weakly; the attribute keeps this one alive.
        self._departing = asyncio.ensure_future(self._depart(pinned))

    def _persisted(self, message: Message) -> None:
        self._audit.note(message)
        body = message.body
        if isinstance(body, ViewChange):
            leader = self._federation.roster.leader(body.round, body.view - 1)
            late = status.name(self._federation, leader)
            log_peer_event(
                "asking for another view", "warning", round=body.round, view=body.view, late=late
            )

    def _decided(self, decided: Decided) -> None:
        self._audit.decided(decided)
        # What follows comes in a later turn, when all effects of this batch have been carried out.
        loop = asyncio.get_running_loop()
        if decided.outcome is not None:
            loop.call_soon(self._continue)
        if not self._tracker.decide(decided):
            return
        last = self._tracker.last
        assert last is not None
        log_event("decided", round=last.round, view=last.view, value=last.value, **_judged(last))
        if self._tracker.finished:
            log_event("finished", round=last.round)
        if self._compactor.due:
            loop.call_soon(self._compact)

    def _compact(self) -> None:
        try:
            self._compactor.compact()
        except UserError as error:
            self._driver.fail(str(error))

    def _accused(self, evidence: Message) -> None:
        charge = self._tracker.accuse(evidence)
        log_peer_event(
            "evidence of misbehaviour",
            "warning",
            round=charge.round,
            against=charge.name,
            signed=charge.what,
        )

    def _waiting(self, waiting: Waiting) -> None:
        self._tracker.wait(waiting)
        if not self._tracker.finished:
            log_event(
                "too few clients have sent their uploads",
                "warning",
                round=self._replica.round,
                held=waiting.held,
                minimum=waiting.minimum,
            )

    def _failed(self, why: str) -> None:
        log_event("this server no longer votes", "error", why=why)

    def _peer(self, peer: int, is_connected: bool) -> None:
        event = "connected" if is_connected else "disconnected"
        level = "debug" if peer < 0 else "info"
        log_peer_event(event, level, peer=status.name(self._federation, peer))
        if not is_connected:
            self._driver.peer_left(peer)
        elif peer in self._federation.courier_numbers:
            self._links.send(peer, self._last_decided().wire)

    def _last_decided(self) -> Message:
        """Return the greeting for couriers: the last round decided on this disk, or none."""
        certificate = self._replica.chain.get(self._tracker.decided)
        content = b""
        if certificate is not None:
            content = certificate.write()
        return self._rules.unsigned(Part(self._tracker.decided, PartKind.STANDING, content))

    def _certificate(self, fetch: Fetch) -> Message | None:
        """Answer a question for a certificate once this server can write nothing any more.

        Only rounds whose decision is on the disk count; the replica may know more than that.
        """
        if fetch.what != PartKind.CERT or fetch.round > self._tracker.decided:
            return None
        certificate = self._replica.chain.get(fetch.round)
        if certificate is None:
            return None
        return self._rules.unsigned(Cert(fetch.round, certificate))


def _judged(last: LastRound) -> dict[str, Any]:
    """Return the facts of a round for the log: nothing of what is not known, or did not happen."""
    facts = {
        "clients": last.clients,
        "filtered": {one.name: one.reason for one in last.filtered or ()},
        "reduced": {one.name: one.reason for one in last.reduced or ()},
    }
    return {name: fact for name, fact in facts.items() if fact}


def _inherited(identity: Identity) -> Outcome | None:
    """Return the outcome that this run starts from, or None for a federation's first run."""
    outcome = epochs.inherited_outcome(identity.folder, identity.federation)
    if outcome is not None and not outcome.state:
        raise UserError(
            f"{identity.folder / epochs.PAST} is from a client and lacks the detector's state:"
            " copy a server's instead"
        )
    return outcome


def _open_log(identity: Identity, rules: Rules, rejoin: bool) -> WriteAheadLog:
    """Open the log; a server that rejoins sets its old one aside and marks the new one first.

    Without that mark it would start as a new server and might contradict its earlier votes.
    """
    folder = identity.folder
    if rejoin:
        mark = lost_log_mark(rules, secrets.token_bytes(32))
        log_event("rejoining", "warning", log=f"set aside as {WriteAheadLog.reset(folder).name}")
        store = WriteAheadLog.open(folder, rules.run)
        store.append(mark)
        store.flush()
        return store
    store = WriteAheadLog.open(folder, rules.run)
    # It may have been killed after setting the old log aside, and before the mark was written.
    if not store.messages and any(folder.glob("log.damaged-*")):
        store.close()
        raise UserError(
            f"the log of {folder} was set aside and no new one begun:"
            f" run `fedrfq server {folder} --rejoin`"
        )
    return store


async def serve(identity: Identity, options: ServerOptions) -> None:
    """Run the server of a folder, in its federation and in the successors."""
    if not identity.is_server:
        raise UserError(
            f"{identity.folder} is a {identity.role}'s folder, not a server's;"
            " `fedrfq client DIR --data …` runs a client"
        )
    gc.set_threshold(_GC_THRESHOLD)
    while True:
        server = Server(identity, options)
        await server.run()
        if server.ended is None:
            return
        epochs.activate_successor(identity.folder, *server.ended)
        if server.signalled:
            return
        identity = load(identity.folder)
        options = replace(options, rejoin=False)
