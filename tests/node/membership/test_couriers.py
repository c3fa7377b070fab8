"""Couriers in federation.toml: they ask, are founded and changed; without them nothing differs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.consensus.events import Outcome
from fedrfq.errors import UserError
from fedrfq.federation import signatures
from fedrfq.federation.codec import decode_state, encode_state
from fedrfq.federation.federation_file import Federation, Timings, experiment_digest
from fedrfq.federation.members import Member, Members
from fedrfq.federation.reconfiguration import inherited_by
from fedrfq.files import toml
from fedrfq.node.courier import Courier
from fedrfq.node.membership import founding, identity, proposal
from fedrfq.node.membership.change import changed, differences
from fedrfq.node.membership.founding import NewKeys
from fedrfq.node.membership.request import Request
from fedrfq.node.ops import status
from fedrfq.node.ops.local_cluster import Cluster
from support.command import fedrfq
from support.committees import TABLE
from support.federations import PATIENCE_S, Servers, founded, signed
from support.parties import keys, purpose

# The run ids of federations without couriers: of a simulated one, and of one on a network.
RUNS = (
    "5f5475e0daefc665d46b60d4cf93e27b0f628eab251e7a507981a657d769e903",
    "e8f14486b24c3cb7a69f931314eab2946bc7865dbd40a888211b544cee4bef9a",
)


def agreed(couriers: int = 2) -> Federation:
    made = [*keys(), *(NewKeys.new(f"courier-{k}", courier=True) for k in range(couriers))]
    return founding.federation(purpose(), [each.request for each in reversed(made)], Timings())


def test_without_couriers_a_federation_is_what_it_was() -> None:
    own = tuple(signatures.simulated(0, "party", k).public for k in range(6))
    members = tuple(
        Member(f"party-{k}", f"h:{k + 1}" if k < 4 else "", b"certificate %d" % k) for k in range(6)
    )
    for network, known in zip((None, Members("", toml.dump(TABLE), members)), RUNS, strict=True):
        federation = Federation(
            experiment_digest(TABLE), Timings(), purpose().task, own[:4], own[4:], network
        )
        assert federation.roster.run.hex() == known
        assert "courier" not in federation.text
        assert not federation.courier_numbers


def test_couriers_are_members_without_a_vote() -> None:
    federation = agreed()
    assert Federation.read(federation.text, "here") == federation
    names = [member.name for member in federation.members.values()]
    assert names == [
        "server-0",
        "server-1",
        "server-2",
        "server-3",
        "client-0",
        "client-1",
        "courier-0",
        "courier-1",
    ]
    assert list(federation.members)[6:] == list(federation.courier_numbers) == [~2, ~3]
    roles = [federation.role(party) for party in federation.members]
    assert roles == [*["server"] * 4, *["client"] * 2, *["courier"] * 2]
    assert not set(federation.couriers) & set(federation.roster.keys.values())
    assert [status.name(federation, party) for party in federation.courier_numbers] == [
        "courier-0",
        "courier-1",
    ]
    assert federation.roster.run != agreed(0).roster.run
    assert "2 couriers" in federation.about()


def test_federations_with_couriers_that_could_not_be_are_refused() -> None:
    federation = agreed(1)
    head, courier = federation.text.split("[[couriers]]")
    for text in (
        head + "couriers = []\n",
        federation.text + "\n[[couriers]]" + courier,
        federation.text.replace('name = "courier-0"', 'name = "client-0"'),
        federation.text.replace('name = "courier-0"', 'name = "courier-0"\naddress = "h:9"'),
    ):
        with pytest.raises(UserError):
            Federation.read(text, "here")
    with pytest.raises(UserError, match="key of its own"):
        replace(federation, couriers=federation.clients[:1])
    with pytest.raises(UserError, match="on a network"):
        replace(federation, network=None)


def test_a_courier_makes_its_own_keys(tmp_path: Path) -> None:
    fedrfq("keys", "new", tmp_path / "post", "--name", "post", "--courier")
    request = founding.read_request(tmp_path / "post" / "request.toml")
    assert request.role == "courier"
    assert not request.is_server
    with pytest.raises(UserError, match="not signed by its own key"):
        replace(request, courier=False).check()
    wrong = ("--name", "x", "--courier", "--address", "h:1")
    assert "no address" in fedrfq("keys", "new", tmp_path / "x", *wrong, expect=2).stderr
    text = NewKeys.new("s", "h:1").request.text.replace('"server"', '"courier"')
    with pytest.raises(UserError, match="no address"):
        Request.read(text, "here")
    home = tmp_path / "it"
    added = fedrfq("committee", "add", home, tmp_path / "post" / "request.toml")
    assert "0 clients and 1 courier" in added.stdout
    options = ("--servers", "4", "--clients", "2", "--couriers", "1", "--set", "rounds=2")
    assert "2 couriers" in fedrfq("committee", "init", home, *options).stdout
    federation = identity.read_federation(home / "federation.toml")
    assert [federation.members[party].name for party in federation.courier_numbers] == [
        "courier-0",
        "post",
    ]
    assert len(federation.clients) == 2
    assert identity.load(home / "courier-0").role == "courier"
    assert all(party not in federation.courier_numbers for party in Cluster(home).children)


def test_a_change_keeps_renews_adds_and_expels_couriers() -> None:
    federation = agreed()
    more = NewKeys.new("post", courier=True).request
    kept = changed(federation, [NewKeys.new("client-9").request])
    assert kept.couriers == federation.couriers
    renewed = changed(federation, [NewKeys.new("courier-1", courier=True).request])
    assert renewed.couriers[0] == federation.couriers[0] != renewed.couriers[1]
    assert [line for line in differences(federation, renewed) if "courier" in line] == [
        "courier-1: new key, certificate"
    ]
    swapped = changed(federation, [more], ["courier-0"])
    assert [swapped.members[party].name for party in swapped.courier_numbers] == [
        "post",
        "courier-1",
    ]
    assert "post: joins as a courier" in differences(federation, swapped)
    assert not changed(federation, [], ["courier-0", "courier-1"]).couriers
    with pytest.raises(UserError, match="same name"):
        changed(federation, [NewKeys.new("client-0", courier=True).request])


def test_what_is_remembered_of_clients_is_not_of_couriers() -> None:
    federation = agreed()
    state = federation.task.detector.start(2)
    new = changed(federation, [], ["client-0"])
    found = decode_state(
        inherited_by(federation, Outcome(b"", b"", encode_state(state)), new).state
    )
    assert {name: array.shape for name, array in found.items()} == {
        name: array.shape for name, array in new.task.detector.start(1).items()
    }


def test_it_goes_on_with_the_federation_that_follows(tmp_path: Path) -> None:
    federation = founded(tmp_path, couriers=1, rounds=50, deadline_ms=600_000)
    own = tmp_path / "courier-0"
    fedrfq("keys", "rotate", own)
    file = tmp_path / "new.toml"
    file.write_text(
        changed(federation, [founding.read_request(own / "rotation" / "request.toml")]).text
    )
    for server in range(3):
        proposal.propose(identity.load(tmp_path / f"server-{server}"), file)

    async def test() -> None:
        servers = Servers(tmp_path)
        number = 1
        await servers.start(0, 1, 2, 3)
        async with Courier.open(own) as courier:
            carried = await courier.carry(number, signed(tmp_path, number), PATIENCE_S)
            while not carried.successor:
                number += 1
                carried = await courier.carry(number, signed(tmp_path, number), PATIENCE_S)
        assert carried.successor == file.read_bytes()
        await servers.stop()

    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE_S))
    assert identity.load(own).federation.text == file.read_text()
    assert (own / "past" / "1" / "last.bin").exists()
