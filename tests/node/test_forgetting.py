"""A client is forgotten: on the disk, over restarts and changes, by real processes, in an audit."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.audit import Audit
from fedrfq.audit.taken_back import check_remaining
from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Outcome, Received, Submit
from fedrfq.consensus.messages import Entries, Part, PartKind, Upload
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.public_task import PublicTask
from fedrfq.federation.reconfiguration import inherited_by
from fedrfq.federation.retained import MARK, retained_in, withdrawal
from fedrfq.federation.round_log import unpack
from fedrfq.files import hash_chain
from fedrfq.node.client import ClientEnded, ClientProcess, attend
from fedrfq.node.leaver import FORGOTTEN, Leaver, mark
from fedrfq.node.membership import epochs
from fedrfq.node.membership.change import changed, differences
from fedrfq.node.membership.identity import load
from fedrfq.node.membership.purge import purge
from fedrfq.node.news import News
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from fedrfq.prototypes.fixed_point import Globals
from support.command import fedrfq
from support.committees import PUBLIC, some_settings, uploads
from support.federations import PATIENCE_S, Uploader, founded, process, status, until
from support.networked import CLIENTS, Networked
from support.small import CPU

REVOCABLE = replace(PUBLIC, revocable=True, every=0)
SERVERS = range(4)
LEAVER = 1
# Nobody reads what the processes say: a pipe that is full would stop them.
QUIET = ("--log-level", "error")


def contents(round_: int, clients: int = CLIENTS) -> list[bytes]:
    return uploads(some_settings(clients, public=REVOCABLE), round_).encoded(round_)


def statistics(which: dict[int, bytes], clients: int = CLIENTS) -> bytes:
    """Return the public part of a federation that had these uploads alone in its first round."""
    return PrototypeApplication(some_settings(clients, public=REVOCABLE).task).statistics(which)


def others() -> dict[int, bytes]:
    return {k: content for k, content in enumerate(contents(1)) if k != LEAVER}


def leave(network: Networked, round_: int) -> None:
    sent = contents(round_)
    sent[LEAVER] = withdrawal(round_, LEAVER, REVOCABLE)
    network.round(round_, sent)


def last(network: Networked, party: int = 0) -> Outcome:
    outcome = network.decided[party][-1].outcome
    assert outcome is not None
    return outcome


@pytest.fixture
def network(tmp_path: Path) -> Networked:
    """Return a federation that forgot a client in the third of four rounds."""
    found = Networked(tmp_path, REVOCABLE)
    found.round(1)
    found.round(2)
    leave(found, 3)
    found.round(4, contents(4))
    return found


def test_all_parties_have_what_remains_and_it_is_verified(network: Networked) -> None:
    for party in (*SERVERS, *(~k for k in range(CLIENTS))):
        assert last(network, party).public == statistics(others())
    assert statistics(others()) != statistics(dict(enumerate(contents(1))))
    homes = [network.home(party) for party in SERVERS]
    shown = fedrfq("verify", *homes, "--recompute").stdout
    assert shown.count("in round 3: client-1 (all)") == 4
    assert "computed anew from the uploads that are left" in shown
    answer = fedrfq("verify", homes[0], "--recompute", "--json").stdout.splitlines()[-1]
    found = json.loads(answer)
    assert found["taken_back"] == {"3": {"client-1": "all"}}


def test_a_server_restarts_with_what_remains(network: Networked) -> None:
    log = network.stores[2].messages
    for messages in (log, compacted(log)):
        replica = network.parties[2]
        assert isinstance(replica, Replica)
        again = Replica(network.rules, 2, network.signers[2], replica.application, messages)
        assert again.outcome == last(network)
        assert again.outcome is not None
        assert sorted(retained_in(codec.decode_state(again.outcome.state))) == [0, 2]


def test_an_old_upload_is_not_taken_again(network: Networked) -> None:
    """Not as it was signed, nor with the mark, nor signed anew for this round as it is."""
    replica = network.parties[0]
    assert isinstance(replica, Replica)
    old = contents(1)[LEAVER]
    for message in (
        network.upload(LEAVER, 1, old),
        network.upload(LEAVER, 5, old),
        network.upload(LEAVER, 5, MARK + old),
        # Another client cannot take back what is not its own.
        network.rules.signed(
            Upload(5, LEAVER, withdrawal(5, LEAVER, REVOCABLE)), network.signers[~0]
        ),
    ):
        before = replica.ignored.total()
        network.give(0, Received(~LEAVER, message))
        assert replica.ignored.total() == before + 1


def test_who_is_expelled_is_forgotten_and_others_keep_their_statistics(tmp_path: Path) -> None:
    network = Networked(tmp_path, REVOCABLE)
    network.round(1)
    new = changed(network.federation, expelled=["client-1"])
    lines = differences(network.federation, new)
    assert "client-1: leaves, and its statistics are forgotten" in lines
    inherited = inherited_by(network.federation, last(network), new)
    kept = retained_in(codec.decode_state(inherited.state))
    assert kept == {0: contents(1)[0], 1: contents(1)[2]}
    # In the next run's first round one client is away, and counts with what it sent before.
    sent = contents(1, 2)[0]
    first = PrototypeApplication(new.task).decide(1, inherited, [Upload(1, 0, sent)])
    assert first.public == statistics({0: sent, 1: contents(1)[2]}, 2)


# Purging


def test_a_server_purges_what_the_client_sent_and_the_rest_is_verified(network: Networked) -> None:
    network.close()
    home = network.home(0)
    before = (home / "audit.log").read_bytes()
    secret = contents(1)[LEAVER]
    assert secret in everything(home)
    assert purge(load(home), "client-1") == 3
    assert secret not in everything(home)
    assert contents(2)[LEAVER] not in everything(home)
    assert (home / "audit.log").read_bytes() == before
    assert (home / "bodies.bin").stat().st_mode & 0o777 == 0o600
    # Round 4 has an upload of the client, too: it sends prototypes as before.
    found = list(Audit(home, recompute=True).rounds())
    assert [one.recomputed for one in found] == [False, False, False, False]
    assert found[2].taken_back == {"client-1": "all"}
    done = fedrfq("verify", home, "--recompute", expect=3)
    assert "in round 3: client-1 (all)" in done.stdout
    assert fedrfq("verify", home, "--recompute", network.home(1)).returncode == 0
    # The server goes on from it.
    log = WriteAheadLog.open(home, network.rules.run)
    replica = network.parties[0]
    assert isinstance(replica, Replica)
    again = Replica(network.rules, 0, network.signers[0], replica.application, log.messages)
    assert again.outcome == last(network)
    log.close()


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_rounds_after_the_client_has_gone_are_computed_anew(tmp_path: Path) -> None:
    network = Networked(tmp_path, REVOCABLE)
    network.round(1)
    leave(network, 2)
    for round_ in (3, 4):
        sent = contents(round_)
        sent[LEAVER] = withdrawal(round_, LEAVER, REVOCABLE)
        network.round(round_, sent)
    network.close()
    purge(load(network.home(0)), "client-1")
    found = list(Audit(network.home(0), recompute=True).rounds())
    assert [one.recomputed for one in found] == [False, False, True, True]


def test_nobody_is_purged_who_still_counts_or_never_was(network: Networked) -> None:
    network.close()
    own = load(network.home(0))
    with pytest.raises(UserError, match="the statistics of client-0 still count"):
        purge(own, "client-0")
    with pytest.raises(UserError, match="never had a client nobody"):
        purge(own, "nobody")
    held = WriteAheadLog.open(network.home(0), network.rules.run)
    with pytest.raises(UserError, match="in use"):
        purge(own, "client-1")
    held.close()
    done = fedrfq("committee", "purge", network.home(~0), "client-1", expect=2)
    assert "only servers have others' uploads" in done.stderr
    assert "from 3 rounds" in fedrfq("committee", "purge", network.home(0), "client-1").stdout


def test_what_an_ended_run_kept_of_the_client_is_purged_too(tmp_path: Path) -> None:
    network = Networked(tmp_path, REVOCABLE)
    network.round(1)
    network.succeed(2, changed(network.federation, minimum=2))
    sent = contents(1)
    sent[LEAVER] = withdrawal(1, LEAVER, REVOCABLE)
    network.round(1, sent)
    network.close()
    home = network.home(0)
    assert contents(1)[LEAVER] in everything(home)
    purge(load(home), "client-1")
    assert contents(1)[LEAVER] not in everything(home)
    assert epochs.inherited_outcome(home, network.federation) is not None
    assert fedrfq("verify", home, "--recompute", expect=3).returncode == 3
    assert fedrfq("verify", home).returncode == 0


# What an audit finds out


def test_statistics_that_do_not_follow_from_what_is_kept_are_found(network: Networked) -> None:
    application = PrototypeApplication(network.federation.task)
    outcome = last(network)
    sets: dict[int, Entries] = {
        1: tuple((k, network.upload(k, 1, content).digest) for k, content in enumerate(contents(1)))
    }
    check_remaining(network.rules, application, sets, outcome)
    whole = outcome._replace(public=statistics(dict(enumerate(contents(1)))))
    with pytest.raises(Refused, match="PUBLIC is not what was certified"):
        check_remaining(network.rules, application, sets, whole)
    with pytest.raises(Refused, match="client 0 did not send"):
        check_remaining(network.rules, application, {1: sets[1][1:]}, outcome)
    check_remaining(network.rules, application, None, outcome)


# The client's side


def test_a_leaver_sends_its_withdrawal_until_it_has_counted() -> None:
    """The first round is decided on what it had signed before, and the second leaves it out."""
    nothing = Globals.none(3, 4)
    given: list[Submit] = []

    async def main() -> bool:
        leaver = Leaver(LEAVER, REVOCABLE, given.append)
        leaving = asyncio.create_task(leaver.learn(once=False))
        for round_, counted in ((3, b""), (4, contents(2)[1]), (5, b""), (6, given)):
            if counted is given:
                counted = given[-1].content
            leaver.hear(News(round_, nothing, counted=bytes(counted)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert (await leaving).round == 6
        return leaver.forgotten

    assert asyncio.run(main())
    assert given == [Submit(n, withdrawal(n, LEAVER, REVOCABLE)) for n in (4, 5, 6)]


def test_a_run_that_ends_first_has_not_forgotten() -> None:
    async def main() -> bool:
        leaver = Leaver(LEAVER, REVOCABLE, lambda event: None)
        leaver.hear(News(3, Globals.none(3, 4), last=True))
        await leaver.learn(once=False)
        leaver.interrupt()
        return leaver.forgotten

    assert not asyncio.run(main())


def test_only_clients_of_a_federation_that_agreed_to_it_can_be_forgotten(tmp_path: Path) -> None:
    founded(tmp_path / "plain", public=PUBLIC)
    founded(tmp_path / "revocable", public=REVOCABLE)
    plain = tmp_path / "plain/client-0"
    for folder, why in (
        (plain, "have not agreed that statistics can be taken back"),
        (tmp_path / "revocable/server-0", "is a server's folder"),
    ):
        done = fedrfq("forget", folder, expect=2)
        assert why in " ".join(done.stderr.split())
        assert not (folder / FORGOTTEN).exists()


@pytest.mark.parametrize(
    ("public", "why"),
    [
        (PUBLIC, "sends those of its present samples like all others every 3 rounds"),
        (replace(PUBLIC, every=0), "in the first round after the next change of the federation"),
        (None, "send no statistics"),
    ],
)
def test_statistics_that_nobody_keeps_cannot_be_renewed(
    tmp_path: Path, public: PublicTask | None, why: str
) -> None:
    founded(tmp_path, public=public)
    with pytest.raises(UserError, match=why):
        attend(tmp_path / "client-0", "mnist5k", CPU, renew=True)


# Real processes


def test_server_processes_forget_although_parties_are_killed(tmp_path: Path) -> None:
    """The client is cut off once it has signed, and a server is killed; both start again."""
    founded(tmp_path, rounds=100_000, public=REVOCABLE, minimum=2, deadline_ms=300)
    servers = [tmp_path / f"server-{k}" for k in SERVERS]
    own = load(tmp_path / "client-1")

    async def leave_once() -> ClientEnded:
        return await ClientProcess(own, None, lambda line, rounds: None).run(once=False)

    async def test(running: ExitStack) -> ClientEnded:
        here = [running.enter_context(process(folder, *QUIET)) for folder in servers]
        everybody = [Uploader(tmp_path / f"client-{k}", 100_000) for k in range(CLIENTS)]
        # The leaver first: the second upload closes the round, and the leaver's has to be in it.
        await everybody[LEAVER].start()
        await until(lambda: all(status(folder)["held"] == 1 for folder in servers))
        for client in (everybody[0], everybody[2]):
            await client.start()
        # A slow client may miss a round, but not all.
        await until(lambda: all(max(client.decided, default=0) > 1 for client in everybody))
        await everybody[LEAVER].stop()
        first = asyncio.create_task(leave_once())
        await until(lambda: MARK in everything(own.folder))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        here[0].kill()
        ended = await leave_once()
        running.enter_context(process(servers[0], *QUIET))
        now = max(everybody[0].decided)
        await until(lambda: max(everybody[0].decided) > now + 2)
        for client in (everybody[0], everybody[2]):
            await client.stop()
        return ended

    with ExitStack() as running:
        ended = asyncio.run(asyncio.wait_for(test(running), 3 * PATIENCE_S))
    assert ended.forgotten
    found = list(Audit(servers[1], recompute=True).rounds())
    assert found[-1].recomputed
    assert {"client-1": "all"} in [one.taken_back for one in found]
    with closing(WriteAheadLog.open(servers[1], own.federation.roster.run)) as log:
        parts = [message.body for message in log.messages if isinstance(message.body, Part)]
    public = [part.content for part in parts if part.what == PartKind.PUBLIC]
    assert public[-1] == statistics(first_uploads(servers[1], own.federation.roster.run))
    assert "4 logs agree" in fedrfq("verify", *servers, "--recompute").stdout


def first_uploads(folder: Path, run: bytes) -> dict[int, bytes]:
    """Return what was decided on in round 1, without the leaver's; a slow client may be late."""
    first = next(hash_chain.entries(folder / "bodies.bin", run))
    bodies = [placed.message.body for placed in unpack(first.payload)]
    sent = [body for body in bodies if isinstance(body, Upload)]
    return {body.client: body.content for body in sent if body.client != LEAVER}


def test_a_client_that_asked_to_be_forgotten_does_not_start_by_accident(tmp_path: Path) -> None:
    founded(tmp_path, public=REVOCABLE)
    mark(tmp_path / "client-1", "requested")
    with pytest.raises(UserError, match="has asked to be forgotten"):
        attend(tmp_path / "client-1", "mnist5k", CPU)
