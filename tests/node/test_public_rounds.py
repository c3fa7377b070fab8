"""Public statistics on the disk: logs, audit files, restarts and changes of the federation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from fedrfq.audit import Audit
from fedrfq.consensus.client import Client
from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Timer
from fedrfq.consensus.messages import Fetch, Message, Part, PartKind
from fedrfq.consensus.replica import Replica
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.reconfiguration import read_successor
from fedrfq.federation.round_log import unpack
from fedrfq.files import hash_chain
from fedrfq.node.client import ClientProcess
from fedrfq.node.ended_runs import EndedRuns
from fedrfq.node.membership import epochs
from fedrfq.node.membership.change import changed
from fedrfq.node.membership.identity import load
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.prototypes.fixed_point import encode
from support.command import fedrfq
from support.committees import PUBLIC
from support.networked import Networked

EVERYBODY = (0, 1, 2, 3, ~0, ~1, ~2)


@pytest.fixture
def network(tmp_path: Path) -> Networked:
    """Return a federation after five rounds, of which the first and the fourth are public."""
    found = Networked(tmp_path, PUBLIC)
    for number in range(1, 6):
        found.round(number)
    return found


def public_of(network: Networked, party: int) -> bytes:
    """Return the public part of the last outcome that a party reported."""
    outcome = network.decided[party][-1].outcome
    assert outcome is not None
    return outcome.public


def rounds_with_public(messages: list[Message]) -> list[int]:
    bodies = [message.body for message in messages]
    return [b.round for b in bodies if isinstance(b, Part) and b.what == PartKind.PUBLIC]


def written(network: Networked, party: int) -> list[int]:
    """Return the rounds of whose entries in bodies.bin the public part is."""
    path = network.home(party) / "bodies.bin"
    entries = hash_chain.entries(path, network.rules.run)
    return rounds_with_public(
        [placed.message for entry in entries for placed in unpack(entry.payload)]
    )


def asked(network: Networked, party: int) -> int:
    bodies = [message.body for sender, _, message in network.sent if sender == party]
    return sum(isinstance(b, Fetch) and b.what == PartKind.PUBLIC for b in bodies)


def test_all_parties_write_it_twice_and_clients_ask_twice(network: Networked) -> None:
    assert len({public_of(network, party) for party in EVERYBODY}) == 1
    for party in EVERYBODY:
        assert rounds_with_public(network.stores[party].messages) == [1, 4]
        assert written(network, party) == [1, 4]
    assert [asked(network, ~k) for k in range(3)] == [2, 2, 2]


def test_everybodys_files_are_verified_and_servers_are_recomputed(network: Networked) -> None:
    homes = [network.home(party) for party in EVERYBODY]
    assert "7 logs agree" in fedrfq("verify", *homes).stdout
    for party in EVERYBODY:
        found = list(Audit(network.home(party), recompute=True).rounds())
        assert [one.round for one in found] == [1, 2, 3, 4, 5]
        # Clients have no uploads of others.
        assert all(one.recomputed for one in found) == (party >= 0)


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_what_a_crash_kept_from_the_audit_files_is_written_at_the_next_start(
    network: Networked, cut: int
) -> None:
    for party in (0, ~0):
        home = network.home(party)
        whole = (home / "bodies.bin").read_bytes()
        for name in ("audit.log", "bodies.bin"):
            hash_chain.cut(home / name, network.rules.run, cut)
        AuditWriter(home, network.federation).recover(network.stores[party].messages)
        assert (home / "bodies.bin").read_bytes() == whole


def test_audit_files_that_are_whole_stay_as_they_are_at_a_restart(network: Networked) -> None:
    """The writer knows from them which public part is written already."""
    home = network.home(0)
    size = (home / "bodies.bin").stat().st_size
    log = compacted(network.stores[0].messages)
    assert rounds_with_public(log) == [4]
    network.audit_writers[0].close()
    network.audit_writers[0] = AuditWriter(home, network.federation)
    network.audit_writers[0].recover(log)
    assert (home / "bodies.bin").stat().st_size == size
    network.round(6)
    assert written(network, 0) == [1, 4]
    assert all(one.recomputed for one in Audit(home, recompute=True).rounds())


def test_a_client_that_was_away_has_it_in_its_next_entry(tmp_path: Path) -> None:
    network = Networked(tmp_path, PUBLIC)
    network.passes = lambda sender, receiver, message: receiver != ~0
    network.round(1)
    network.passes = lambda sender, receiver, message: True
    network.round(2)
    # It has sent nothing in this round, as it was still in the first.
    network.expire(Timer.DEADLINE)
    network.settle()
    assert public_of(network, ~0) == public_of(network, 0) != b""
    assert (written(network, ~0), asked(network, ~0)) == ([2], 1)
    assert [one.round for one in Audit(network.home(~0), recompute=True).rounds()] == [2]


def test_a_servers_round_is_recomputed_after_rounds_that_it_only_heard_of(tmp_path: Path) -> None:
    """It fetched the outcomes of rounds 1 and 2; only the first has brought public statistics."""
    network = Networked(tmp_path, PUBLIC)
    for number in (1, 2):
        network.passes = lambda sender, receiver, message: 3 not in (sender, receiver)
        network.round(number)
        network.passes = lambda sender, receiver, message: True
        network.expire(Timer.RESEND, 3)
        network.settle()
    network.round(3)
    assert written(network, 3) == [1]
    found = list(Audit(network.home(3), recompute=True).rounds())
    assert [one.recomputed for one in found] == [False, False, True]


def test_a_change_of_the_federation_keeps_it(network: Networked) -> None:
    before = public_of(network, 0)
    old = network.federation
    # The next round would be public again, and its first is: so compare what it starts from.
    new = changed(old, minimum=2)
    network.succeed(6, new)
    for party in (0, ~0):
        inherited = epochs.inherited_outcome(network.home(party), new)
        assert inherited is not None
        assert inherited.public == before
    client = network.parties[~0]
    assert isinstance(client, Client)
    assert client.parts[PartKind.PUBLIC] == before
    for number in (1, 2):
        network.round(number)
    assert public_of(network, 0) == public_of(network, ~0)
    for party in EVERYBODY:
        folder = network.home(party)
        assert all(one.round for one in Audit(folder, recompute=True).rounds())
    homes = [network.home(party) for party in EVERYBODY]
    assert fedrfq("verify", *homes, "--recompute").returncode == 0


def test_an_ended_run_is_served_though_it_only_inherited_its_statistics(tmp_path: Path) -> None:
    """Its log holds them, though no round of it has changed them."""
    network = Networked(tmp_path, PUBLIC)
    network.round(1)
    network.succeed(2, changed(network.federation, minimum=2))
    # In the only round of the second run nobody sends a class.
    empty_R = np.zeros(PUBLIC.rows, np.int64)
    empty_RV = np.zeros((PUBLIC.rows, PUBLIC.values), np.int64)
    nothing = [encode(1, k, empty_R, empty_RV, PUBLIC.precision) for k in range(3)]
    network.succeed(1, changed(network.federation, minimum=1), nothing)
    network.close()
    ended = EndedRuns(load(network.home(0)))
    runs = [run.federation.roster.run for run in epochs.ended_epochs(network.home(0))]
    assert len(runs) == 2
    publics = {run.outcome.public for run in epochs.ended_epochs(network.home(0))}
    assert len(publics) == 1
    assert publics != {b""}
    assert all(run in ended for run in runs)
    ended.close()


def test_another_map_is_another_federation(network: Networked) -> None:
    new = changed(network.federation, minimum=2).text
    assert read_successor(network.federation, new.encode())
    for old_line, new_line in (
        ('map = "random:1"', 'map = "random:2"'),
        ("norm = 2.0", "norm = 3.0"),
        ("moments = 2", "moments = 3"),
    ):
        with pytest.raises(UserError, match="another value for public"):
            read_successor(network.federation, new.replace(old_line, new_line).encode())


def test_a_last_file_with_another_public_part_is_refused(network: Networked) -> None:
    new = changed(network.federation, minimum=2)
    network.succeed(6, new)
    home = network.home(~0)
    last = home / "past/1/last.bin"
    content = last.read_bytes()
    place = content.index(public_of_file(content))
    last.write_bytes(
        content[: place + 30] + bytes([content[place + 30] ^ 1]) + content[place + 31 :]
    )
    with pytest.raises(UserError, match="PUBLIC is not what was certified"):
        epochs.inherited_outcome(home, new)


def public_of_file(content: bytes) -> bytes:
    bodies = [placed.message.body for placed in unpack(content)]
    return next(b.content for b in bodies if isinstance(b, Part) and b.what == PartKind.PUBLIC)


def test_a_client_process_hears_the_statistics_with_every_result(network: Networked) -> None:
    """In the first run, and before the first round of the next."""
    own = SimpleNamespace(
        _federation=network.federation,
        _identity=SimpleNamespace(party=~0),
        _rounds=9,
        _inherited=None,
        _signed=None,
    )
    process = cast(ClientProcess, own)
    assert ClientProcess._start_news(process).public is None
    certificate, outcome, _ = network.decided[~0][-1]
    assert outcome is not None
    news = ClientProcess._news(process, certificate, outcome)
    expected = codec.decode_public(outcome.public, PUBLIC)
    own._inherited = outcome
    for found in (news, ClientProcess._start_news(process)):
        assert found.public is not None
        assert expected is not None
        assert np.array_equal(found.public.values_JV, expected.values_JV)
    assert (news.round, news.verdict != "") == (5, True)


def test_a_server_restarts_with_it(network: Networked) -> None:
    before = public_of(network, 2)
    for log in (network.stores[2].messages, compacted(network.stores[2].messages)):
        replica = network.parties[2]
        assert isinstance(replica, Replica)
        again = Replica(network.rules, 2, network.signers[2], replica.application, log)
        assert again.outcome is not None
        assert again.outcome.public == before
