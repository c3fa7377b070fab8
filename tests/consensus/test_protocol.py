"""Versions of the protocol: which programs run a federation together, and which refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.audit.audit import Audit
from fedrfq.consensus import protocol
from fedrfq.consensus.events import Effect, Event, Propose, Received
from fedrfq.consensus.messages import Fetch, Message, PartKind, decode
from fedrfq.consensus.protocol import LATEST, refusal, tag, version_of
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import _proposal_problem
from fedrfq.node.membership.change import changed, differences
from support.cluster import Cluster, roster
from support.federations import founded
from support.networked import Networked

OLDER = (LATEST,)
NEWER = (LATEST, LATEST + 1)


@contextmanager
def speaking(versions: tuple[int, ...]) -> Iterator[None]:
    """Do as a program does that speaks these versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "SUPPORTED", versions)
        yield


class MixedCluster(Cluster):
    """A committee of which server 0 and client 0 run a newer program.

    All messages travel as bytes, so that each program reads what the others have written.
    """

    def give(self, party: int, event: Event) -> list[Effect]:
        with speaking(NEWER if party in (0, ~0) else OLDER):
            if isinstance(event, Received):
                event = Received(event.peer, decode(event.message.wire))
            return super().give(party, event)


def test_tags_name_their_version() -> None:
    for version in range(1, 10):
        assert version_of(tag(version)) == version
        assert len(tag(version)) == protocol.TAG_BYTES
    for other in (b"fedrfq--", b"fedrfq-x", b"fedrfq 3", b"FEDRFQ-3", bytes(8), b""):
        assert version_of(other) is None


def test_programs_of_adjacent_versions_run_a_federation_together() -> None:
    """It goes on at the version that its file names, which is that of the older program."""
    cluster = MixedCluster()
    for round_ in (1, 2):
        cluster.train(round_)
        cluster.settle()
    assert cluster.globals_(2) == dict.fromkeys(range(4), b"12341234")
    assert len(cluster.parties[3].chain) == 2
    assert {message.protocol for _, _, message in cluster.sent} == {LATEST}


def test_an_older_program_refuses_a_newer_federation_and_its_messages() -> None:
    with speaking(NEWER):
        newer = Rules(roster(protocol=LATEST + 1))
        message = newer.unsigned(Fetch(1, PartKind.WORDS))
        assert decode(message.wire).protocol == LATEST + 1
        assert newer.of_run(decode(message.wire))
    with pytest.raises(UserError, match=r"version 4 .* speaks 3: install a newer release"):
        roster(protocol=LATEST + 1)
    with pytest.raises(Refused, match=r"version 4 .* speaks 3: install a newer release"):
        decode(message.wire)


def test_a_message_of_another_version_does_not_count_in_a_run() -> None:
    """Not even for a program that speaks both: all parties of a run speak the same."""
    cluster = Cluster()
    signed = cluster.upload(0, 1, b"1")
    with speaking(NEWER):
        other = Message(signed.run, signed.body, protocol=LATEST + 1, signature=signed.signature)
        assert cluster.give(0, Received(~0, decode(other.wire))) == []
    assert cluster.parties[0].ignored["another run"] == 1


def test_the_version_is_part_of_the_runs_id() -> None:
    with speaking(NEWER):
        assert roster().run != roster(protocol=LATEST + 1).run


def test_a_committee_goes_on_to_the_next_version_by_a_change_of_the_federation(
    tmp_path: Path,
) -> None:
    federation = founded(tmp_path)
    assert federation.protocol == LATEST
    with speaking(NEWER):
        new = changed(federation, protocol=LATEST + 1)
        assert differences(federation, new) == ["protocol: version 3 -> 4"]
        assert Federation.read(new.text, "it") == new
        assert new.roster.protocol == LATEST + 1
    # A server with the older program refuses to approve it.
    with pytest.raises(UserError, match=r"version 4 .* speaks 3: install a newer release"):
        Federation.read(new.text, "it")
    with pytest.raises(UserError, match="install a newer release"):
        changed(federation, protocol=LATEST + 1)


class MixedNetwork(Networked):
    """A committee of which servers 2 and 3 run an older program."""

    def give(self, party: int, event: Event) -> list[Effect]:
        # What a program thinks of a text is remembered, and here two programs share the memory.
        _proposal_problem.cache_clear()
        with speaking(OLDER if party in (2, 3) else NEWER):
            return super().give(party, event)


def test_a_proposal_of_the_next_version_does_not_stop_an_older_program(tmp_path: Path) -> None:
    """Nor does it end the run before a quorum has the newer one."""
    network = MixedNetwork(tmp_path / "federation")
    with speaking(NEWER):
        new = changed(network.federation, protocol=LATEST + 1).text.encode()
    network.passes = lambda sender, receiver, message: 3 not in (sender, receiver)
    for server in (0, 1):
        network.give(server, Propose(1, new))
    network.round(1)
    network.close()
    for server in (0, 1, 2):
        (decided,) = network.decided[server]
        assert decided.outcome is not None
        assert not decided.outcome.successor
    # An auditor with the older program can check the round, too.
    _proposal_problem.cache_clear()
    (audited,) = Audit(network.home(0), recompute=True).rounds()
    assert audited.inputs is not None
    assert audited.recomputed
    assert len(audited.inputs.proposals) == 2


def test_no_federation_goes_back_to_an_older_version(tmp_path: Path) -> None:
    """A newer program may no longer speak it, and all must agree on what can be proposed."""
    with speaking(NEWER):
        newer = replace(founded(tmp_path), protocol=LATEST + 1)
        with pytest.raises(UserError, match="from version 4 of the protocol back to 3"):
            changed(newer, protocol=LATEST)


def test_federations_and_logs_of_older_versions_are_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    federation = founded(tmp_path)
    old = federation.text.replace("protocol = 3\n", "")
    line = "names no protocol, so it is of version 1 or 2, but this program speaks 3: finish"
    with pytest.raises(UserError, match=line):
        Federation.read(old, "federation.toml")
    folder = tmp_path / "server-0"
    (folder / "federation.toml").write_text(old)
    with pytest.raises(UserError, match="verify its logs, with the release of fedrfq that wrote"):
        Audit(folder)
    message = Rules(roster()).unsigned(Fetch(1, PartKind.WORDS)).wire
    for version in (1, 2):
        with pytest.raises(Refused, match=rf"version {version} .* the release of fedrfq that"):
            decode(tag(version) + message[protocol.TAG_BYTES :])
    assert refusal(LATEST) is None
    with pytest.raises(UserError, match="version 2 of the protocol"):
        replace(federation, protocol=2).roster.run  # noqa: B018
