"""What hostile, careless or unlucky parties must not be able to do to a federation."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.consensus.events import Propose, Received
from fedrfq.consensus.messages import ChangeProposal, Fetch, Message, PartKind, Upload, unsigned
from fedrfq.consensus.rules import Rules
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation, experiment_digest
from fedrfq.files import toml
from fedrfq.node import client
from fedrfq.node.client import ClientEnded
from fedrfq.node.client_learning import participant
from fedrfq.node.ended_runs import EndedRuns
from fedrfq.node.membership import epochs, founding, identity, proposal
from fedrfq.node.membership.change import changed
from fedrfq.node.membership.founding import NewKeys
from fedrfq.node.ops.local_cluster import free_ports
from fedrfq.node.server import Server, ServerOptions, serve
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.log_reader import load
from support.command import fedrfq
from support.committees import some_settings, uploads
from support.federations import founded
from support.networked import Networked
from support.small import CPU


@pytest.fixture
def changed_twice(tmp_path: Path) -> Networked:
    """Return a federation after three runs, of 3, 2 and 1 rounds."""
    found = Networked(tmp_path)
    found.round(1)
    found.round(2)
    found.succeed(3, changed(found.federation, minimum=1))
    found.round(1)
    found.succeed(2, changed(found.federation, minimum=2))
    found.round(1)
    found.close()
    return found


# Change proposals


def test_a_change_proposal_that_is_refused_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Networked(tmp_path)
    read = []
    monkeypatch.setattr(
        Federation, "read", staticmethod(lambda text, where: read.append(text) or _refuse())
    )
    change_proposal = found.rules.signed(ChangeProposal(1, 3, b"hostile"), found.signers[3])
    long = found.rules.signed(ChangeProposal(1, 3, b"#" * (1 << 20)), found.signers[3])
    for message in (change_proposal, change_proposal, long):
        found.parties[0].step(Received(3, message))
    found.close()
    assert read == ["hostile"]


def _refuse() -> Federation:
    raise UserError("no federation")


@pytest.mark.parametrize("bad", [b"no certificate", b"\0"])
def test_nobody_approves_a_certificate_that_no_server_could_load(
    tmp_path: Path, bad: bytes
) -> None:
    federation = founded(tmp_path)
    file = tmp_path / "new.toml"
    new = changed(federation, [NewKeys.new("client-9").request])
    assert new.network is not None
    *members, last = new.network.members
    network = replace(new.network, members=(*members, replace(last, certificate=bad)))
    file.write_text(replace(new, network=network).text)
    with pytest.raises(UserError, match="client-9"):
        proposal.propose(identity.load(tmp_path / "server-0"), file)


def test_nobody_approves_an_experiment_without_rounds(tmp_path: Path) -> None:
    federation = founded(tmp_path)
    file = tmp_path / "new.toml"
    new = changed(federation, minimum=2)
    assert new.network is not None
    table = toml.strict(new.network.experiment)
    del table["rounds"]
    network = replace(new.network, experiment=toml.dump(table))
    file.write_text(replace(new, experiment=experiment_digest(table), network=network).text)
    with pytest.raises(UserError, match="rounds"):
        proposal.propose(identity.load(tmp_path / "server-0"), file)


# The past


def test_a_past_without_its_beginning_is_none(changed_twice: Networked) -> None:
    home = changed_twice.home(0)
    assert epochs.rounds_before(home) == 5
    shutil.rmtree(home / "past" / "1")
    with pytest.raises(UserError):
        epochs.rounds_before(home)


def test_a_past_with_another_beginning_is_none(changed_twice: Networked, tmp_path: Path) -> None:
    """An attacker's own servers certify that the second run follows from theirs."""
    home = changed_twice.home(0)
    forged = Networked(tmp_path / "forged")
    second = (home / "past" / "2" / "federation.toml").read_bytes()
    for server in range(4):
        object.__setattr__(
            forged.parties[server].application, "refuses_successor", lambda text: None
        )
    for server in range(3):
        forged.give(server, Propose(1, second))
    forged.round(1)
    certificate, outcome, _ = forged.decided[0][-1]
    forged.close()
    assert outcome is not None
    (home / "past" / "1" / "last.bin").write_bytes(
        epochs.encode_last(forged.rules, certificate, outcome)
    )
    (home / "past" / "1" / "federation.toml").write_text(forged.federation.text)
    with pytest.raises(UserError):
        epochs.rounds_before(home)


def test_of_a_run_whose_log_is_gone_nothing_is_signed(changed_twice: Networked) -> None:
    home = changed_twice.home(0)
    first = Federation.read((home / "past" / "1" / "federation.toml").read_text(), "")
    for path in (home / "past" / "1" / "log").iterdir():
        path.unlink()
    upload = Upload(1, 0, uploads(some_settings(3), 1).encoded(1)[0])
    message = Rules(first.roster).signed(upload, changed_twice.signers[~0])
    archive = EndedRuns(identity.load(home))
    # A replica without its log would take the upload for a new one and sign a receipt for it.
    answers = []
    if first.roster.run in archive:
        answers = archive.answer(~0, first.roster.run, message.wire)
    archive.close()
    assert not [answer for _, answer in answers if answer.author is not None]


def test_damage_in_the_past_does_not_stop_the_present(changed_twice: Networked) -> None:
    home = changed_twice.home(0)
    path = next((home / "past" / "1" / "log").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    archive = EndedRuns(identity.load(home))
    runs = [epoch.federation.roster.run for epoch in epochs.ended_epochs(home)]
    assert [run in archive for run in runs] == [False, True]
    archive.close()

    async def start() -> None:
        server = Server(identity.load(home), ServerOptions())
        server.stop()
        await server.run()

    asyncio.run(start())


def test_a_server_does_not_start_from_a_past_without_a_state(changed_twice: Networked) -> None:
    home = changed_twice.home(0)
    other = changed_twice.home(~0)
    shutil.copy(other / "past" / "2" / "last.bin", home / "past" / "2" / "last.bin")

    async def start() -> None:
        Server(identity.load(home), ServerOptions())

    with pytest.raises(UserError, match="lacks the detector's state"):
        asyncio.run(start())


def test_rounds_before_a_party_came_are_not_said_to_be_in_its_log(changed_twice: Networked) -> None:
    for name in ("audit.log", "bodies.bin"):
        (changed_twice.home(1) / "past" / "1" / name).unlink()  # as a newcomer has it
    report = fedrfq("verify", *(changed_twice.home(server) for server in range(3))).stdout
    assert "3 logs agree; 3 rounds are in all of them" in report


# Activating a successor


def test_a_federation_is_not_turned_to_a_file_that_nothing_certifies(
    changed_twice: Networked,
) -> None:
    home = changed_twice.home(0)
    (home / "federation.next.toml").write_text(changed(changed_twice.federation, minimum=1).text)
    with suppress(UserError):
        epochs.complete_activation(home)
    assert (home / "federation.toml").read_text() == changed_twice.federation.text


def test_keys_that_were_being_made_take_nobodys_place(tmp_path: Path) -> None:
    """`fedrfq keys rotate` was killed after its first file; then others change the federation."""
    found = Networked(tmp_path)
    home = tmp_path / "server-0"
    NewKeys.new("server-0", "127.0.0.1:1").write(home / "rotation")
    for name in ("tls.key", "tls.crt", "request.toml"):
        (home / "rotation" / name).unlink()
    key = (home / "vote.key").read_bytes()
    found.succeed(1, changed(found.federation, minimum=1))
    found.close()
    assert (home / "past" / "1" / "last.bin").exists()
    assert (home / "vote.key").read_bytes() == key


def test_what_is_cut_off_is_as_private_as_what_is_left(changed_twice: Networked) -> None:
    home = changed_twice.home(0)
    with (home / "bodies.bin").open("ab") as file:
        file.write(b"torn")
    AuditWriter(home, changed_twice.federation)
    assert (home / "bodies.bin.cut-1").stat().st_mode & 0o077 == 0


def test_a_name_that_was_a_servers_gives_a_client_nothing_private(tmp_path: Path) -> None:
    """server-3 is expelled; a client with its name then asks for what only servers may have."""
    found = Networked(tmp_path)
    state = _expelled(found)
    archive = EndedRuns(identity.load(found.home(0)))
    party = next(
        party for party, member in found.federation.members.items() if member.name == "server-3"
    )
    assert party < 0
    first = Federation.read((found.home(0) / "past" / "1" / "federation.toml").read_text(), "")
    question = unsigned(first.roster.run, Fetch(1, PartKind.STATE, state))
    to_server = archive.answer(1, first.roster.run, question.wire)
    to_client = archive.answer(party, first.roster.run, question.wire)
    archive.close()
    # A server gets the state, so it is the role that keeps the client from it.
    assert _states(to_server)
    assert not _states(to_client)


def _states(answers: list[tuple[int, Message]]) -> list[Message]:
    return [
        message for _, message in answers if getattr(message.body, "what", None) == PartKind.STATE
    ]


def _expelled(found: Networked) -> bytes:
    """Expel server-3 and admit a client of that name; return the digest of the last state."""
    as_client = NewKeys.new("server-3").request
    as_server = NewKeys.new("server-9", "127.0.0.1:9").request
    new = changed(found.federation, [as_client, as_server], ["server-3"])
    for server in range(3):
        found.give(server, Propose(1, new.text.encode()))
    found.round(1)
    found.close()
    certificate, outcome, _ = found.decided[0][-1]
    assert outcome is not None
    epochs.activate_successor(
        found.home(0), epochs.encode_last(found.rules, certificate, outcome), new.text.encode()
    )
    found.federation = new
    return certificate.record.state


# Clients at a change

_LIMIT_S = 20.0
_SETS = ["partition.ways=3", "partition.spread=1", "partition.shots=7", "partition.test_shots=5"]


def trained(folder: Path, rounds: int) -> identity.Identity:
    """Found a federation of one server and two clients that really learn; return the server."""
    waits = {"minimum": 1, "deadline_ms": 60_000, "resend_ms": 100}
    founding.init(
        folder, [f"127.0.0.1:{free_ports(1)[0]}"], 2, waits, sets=[*_SETS, f"rounds={rounds}"]
    )
    return identity.load(folder / "server-0")


def approve(server: identity.Identity, new: Federation) -> None:
    file = server.folder / "new.toml"
    file.write_text(new.text)
    proposal.propose(server, file)


async def attended(folder: Path) -> list[ClientEnded]:
    """Take part as `fedrfq client` does; return how each run of the federation ended."""
    ends = []
    while True:
        epochs.complete_activation(folder)
        own = identity.load(folder)
        learning = participant(own, "mnist5k", CPU)
        ends.append(await client._attend(own, learning, False, lambda line, rounds: None, 0))
        if not ends[-1].successor:
            return ends


def all_end(server: identity.Identity) -> list[list[ClientEnded]]:
    """Run the server and both clients until the clients have ended; return how their runs did.

    Whatever a client or the server dies of is raised.
    """

    async def main() -> list[list[ClientEnded]]:
        serving = asyncio.create_task(serve(server, ServerOptions()))
        clients = [
            asyncio.create_task(attended(server.folder.parent / f"client-{k}")) for k in range(2)
        ]
        try:
            async with asyncio.timeout(_LIMIT_S):
                everyone = asyncio.gather(*clients)
                await asyncio.wait({everyone, serving}, return_when=asyncio.FIRST_COMPLETED)
                # It serves until it is stopped, so it can only be done if it has died.
                if serving.done():
                    serving.result()
                return await everyone
        finally:
            for task in (serving, *clients):
                task.cancel()
            await asyncio.gather(serving, *clients, return_exceptions=True)

    return asyncio.run(main())


def rounds_of(ends: list[ClientEnded]) -> list[int]:
    """Return the last round of each run, all of which have ended."""
    assert all(end.finished for end in ends)
    assert [bool(end.successor) for end in ends] == [True] * (len(ends) - 1) + [False]
    return [end.round for end in ends]


def test_a_change_in_the_last_round_ends_the_clients(tmp_path: Path, mnist: Dataset) -> None:
    """The successor has no rounds left, so the clients end without having heard a result of it."""
    server = trained(tmp_path / "f", rounds=1)
    new = changed(server.federation, minimum=2)
    approve(server, new)
    assert [rounds_of(ends) for ends in all_end(server)] == [[1, 0], [1, 0]]
    for k in range(2):
        assert identity.load(tmp_path / "f" / f"client-{k}").federation.text == new.text


def test_a_client_with_new_keys_goes_on(tmp_path: Path, mnist: Dataset) -> None:
    """It takes part in the second round under its new key, and its upload is judged."""
    server = trained(tmp_path / "f", rounds=2)
    home = tmp_path / "f" / "client-1"
    new = NewKeys.new("client-1")
    new.write(home / "rotation")
    approve(server, changed(server.federation, [new.request]))
    assert [rounds_of(ends) for ends in all_end(server)] == [[1, 1], [1, 1]]
    own = identity.load(home)
    assert own.signer.public == new.request.key
    uploaded = load(home / "log", own.federation.roster.run).messages
    rules = Rules(own.federation.roster)
    (upload,) = [message for message in uploaded if isinstance(message.body, Upload)]
    assert rules.authentic(upload)


def test_a_client_that_is_expelled_hears_of_it(
    tmp_path: Path, mnist: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends with the round that expels it and says so; the other client goes on."""
    server = trained(tmp_path / "f", rounds=2)
    approve(server, changed(server.federation, expelled=["client-1"]))
    with caplog.at_level("WARNING", logger="fedrfq.node"):
        stayed, expelled = all_end(server)
    assert rounds_of(stayed) == [1, 1]
    assert rounds_of(expelled) == [1]
    assert caplog.messages.count("the federation goes on without this client") == 1
    home = tmp_path / "f" / "client-1"
    assert identity.load(home).federation.text == server.federation.text
    assert not (home / "past").exists()
