"""Which proofs of misbehaviour a server keeps, and how one that was away learns of them."""

from __future__ import annotations

import pytest

from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Broadcast, Persist, Received, Send
from fedrfq.consensus.evidence import Offence, max_proofs
from fedrfq.consensus.messages import (
    ChangeProposal,
    Commit,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Upload,
    UploadList,
)
from fedrfq.consensus.sizes import sizes_of
from support.cluster import Cluster, key, signer

LIAR = 3


def two_votes(cluster: Cluster, round_: int, server: int = LIAR) -> tuple[Message, Message]:
    return (
        cluster.say(server, Prepare(round_, 9, b"a" * 32, server)),
        cluster.say(server, Prepare(round_, 9, b"b" * 32, server)),
    )


def evidence(cluster: Cluster, first: Message, second: Message) -> Message:
    return cluster.rules.unsigned(Evidence(first.body.round, first, second))


def convict(cluster: Cluster, server: int, round_: int = 1) -> None:
    """Show one server, and nobody else, what the liar has signed."""
    cluster.give(server, Received(LIAR, evidence(cluster, *two_votes(cluster, round_))))


def known(cluster: Cluster, server: int) -> set[Offence]:
    return set(cluster.parties[server].proofs.kept)


def decide(cluster: Cluster, *rounds: int) -> None:
    for round_ in rounds:
        cluster.train(round_)
        cluster.settle()


VOTES = {(LIAR, Kind.PREPARE, Kind.PREPARE)}


class TestWhatIsKept:
    def test_one_proof_of_an_offence_is_kept_in_all_rounds_together(self) -> None:
        cluster = Cluster()
        for round_ in range(1, 4):
            for message in two_votes(cluster, round_):
                cluster.give(0, Received(LIAR, message))
            convict(cluster, 0, round_)
            decide(cluster, round_)
        assert len(cluster.accused[0]) == 1
        assert sum(isinstance(m.body, Evidence) for m in cluster.logs[0]) == 1
        assert known(cluster, 0) == VOTES

    def test_other_offences_and_other_parties_are_kept_too(self) -> None:
        cluster = Cluster()
        commits = [cluster.say(LIAR, Commit(1, 0, value * 32, LIAR)) for value in (b"a", b"b")]
        pairs = [two_votes(cluster, 1), two_votes(cluster, 1, server=2), commits]
        for first, second in pairs:
            cluster.give(0, Received(LIAR, evidence(cluster, first, second)))
        assert len(known(cluster, 0)) == 3

    @pytest.mark.parametrize("is_shown_by_others", [False, True])
    def test_an_upload_that_the_application_refuses_is_no_evidence(
        self, is_shown_by_others: bool
    ) -> None:
        """A third upload is not stored, so nothing has judged it when it is compared."""
        cluster = Cluster()
        signs = signer(key("client", 1))
        large = cluster.rules.signed(Upload(1, 1, b"x" * 1000), signs)
        good = [cluster.upload(1, 1, content) for content in (b"1", b"2")]
        messages = [*good, large]
        if is_shown_by_others:
            messages = [evidence(cluster, good[0], large)]
        for message in messages:
            cluster.give(0, Received(~1, message))
        for proof in cluster.parties[0].proofs.kept.values():
            assert len(proof.wire) < 1000
        assert all(len(message.wire) < 1000 for message in cluster.logs[0])

    def test_an_improper_proposal_is_no_evidence(self) -> None:
        cluster = Cluster()
        decide(cluster, 1)
        honest = cluster.said(1, Kind.PREPREPARE)[0]
        assert isinstance(honest.body, PrePrepare)
        many_lists = honest.body.lists * 50
        large = PrePrepare(1, 0, 1, honest.body.record, many_lists, ())
        shown = evidence(cluster, honest, cluster.say(1, large))
        cluster.give(0, Received(1, shown))
        assert not known(cluster, 0)

    def test_what_is_early_is_kept_only_if_an_honest_party_could_have_said_it(self) -> None:
        cluster = Cluster()
        entries = tuple((100 + number, bytes(32)) for number in range(1000))
        cluster.give(0, Received(LIAR, cluster.say(LIAR, UploadList(2, LIAR, entries))))
        signed = cluster.rules.signed(Upload(2, 1, b"x" * 1000), signer(key("client", 1)))
        cluster.give(0, Received(~1, signed))
        assert not cluster.parties[0].early.kept

    def test_evidence_of_an_old_round_survives_compaction_and_restart(self) -> None:
        cluster = Cluster()
        convict(cluster, 0)
        decide(cluster, 1, 2, 3)
        cluster.logs[0] = compacted(cluster.logs[0])
        cluster.restart(0)
        assert known(cluster, 0) == VOTES
        convict(cluster, 0)
        assert len(cluster.accused[0]) == 1


class TestHandingOn:
    def test_a_server_that_was_down_asks_for_all_proofs_when_it_is_back(self) -> None:
        cluster = Cluster()
        decide(cluster, 1)
        cluster.passes = lambda sender, receiver, message: receiver != 0
        for server in (1, 2):
            convict(cluster, 1, round_=server)
        for value in (b"a", b"b"):
            cluster.give(1, Received(LIAR, cluster.say(LIAR, Commit(2, 0, value * 32, LIAR))))
        cluster.settle()
        cluster.passes = lambda sender, receiver, message: True
        cluster.restart(0)
        cluster.settle()
        assert known(cluster, 0) == known(cluster, 1) > VOTES
        assert {m for m in cluster.logs[0] if isinstance(m.body, Evidence)} == {
            *cluster.parties[0].proofs.kept.values()
        }
        assert len(cluster.accused[0]) == 2

    def test_a_server_that_lost_its_log_asks_too(self) -> None:
        cluster = Cluster()
        convict(cluster, 1)
        decide(cluster, 1)
        cluster.lose(0, b"n" * 32)
        cluster.settle()
        assert known(cluster, 0) == VOTES

    def test_a_server_that_was_cut_off_asks_once_it_has_caught_up(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda sender, receiver, message: 0 not in (sender, receiver)
        convict(cluster, 1)
        decide(cluster, 1, 2, 3)
        cluster.passes = lambda sender, receiver, message: True
        decide(cluster, 4)
        assert cluster.parties[0].round > 3
        assert known(cluster, 0) == VOTES

    def test_what_was_lost_on_the_way_is_asked_for_after_some_rounds(self) -> None:
        cluster = Cluster()
        convict(cluster, 1)
        cluster.queue.clear()
        decide(cluster, *range(1, 15))
        assert not known(cluster, 0)
        decide(cluster, 15)
        assert known(cluster, 0) == known(cluster, 2) == VOTES

    def test_who_knows_all_offences_is_not_told_of_them_again(self) -> None:
        cluster = Cluster()
        decide(cluster, 1)
        for server in (0, 1):
            convict(cluster, server)
        cluster.restart(0)
        cluster.sent.clear()
        cluster.settle()
        parts = [m.body for _, _, m in cluster.sent if isinstance(m.body, Part)]
        assert not [part for part in parts if part.what == PartKind.EVIDENCE]

    def test_clients_are_not_told(self) -> None:
        cluster = Cluster()
        convict(cluster, 0)
        fetch = cluster.rules.unsigned(Fetch(0, PartKind.EVIDENCE))
        assert not cluster.give(0, Received(~0, fetch))
        assert cluster.give(0, Received(1, fetch))

    def test_answers_that_nobody_asked_for_are_ignored(self) -> None:
        cluster = Cluster()
        proof = evidence(cluster, *two_votes(cluster, 1))
        handed = cluster.rules.unsigned(Part(0, PartKind.EVIDENCE, proof.wire))
        assert not cluster.give(0, Received(1, handed))
        assert cluster.parties[0].ignored == {"nobody asked": 1}

    def test_a_liar_cannot_keep_a_server_asking_for_ever(self) -> None:
        cluster = Cluster()
        decide(cluster, 1)
        cluster.restart(0)
        proof = evidence(cluster, *two_votes(cluster, 1)).wire
        questions = 0
        for number in range(1000):
            handed = cluster.rules.unsigned(Part(number, PartKind.EVIDENCE, proof))
            effects = cluster.give(0, Received(LIAR, handed))
            questions += sum(isinstance(effect, Send) for effect in effects)
        assert questions == max_proofs(cluster.roster) - 1
        assert not any(isinstance(effect, Persist | Broadcast) for effect in effects)

    def test_who_shows_what_nobody_would_keep_is_asked_no_further(self) -> None:
        """To check it, the application may have to parse the texts of two federations."""
        cluster = Cluster()
        decide(cluster, 1)
        cluster.restart(0)
        for number in range(3):
            proposals = [ChangeProposal(1, LIAR, b"not a number %d" % n) for n in range(2)]
            shown = evidence(cluster, *(cluster.say(LIAR, each) for each in proposals))
            handed = cluster.rules.unsigned(Part(number, PartKind.EVIDENCE, shown.wire))
            assert not cluster.give(0, Received(LIAR, handed))
        ignored = cluster.parties[0].ignored
        assert ignored == {"evidence of improper messages": 1, "nobody asked": 2}

    @pytest.mark.parametrize("content", [b"", b"garbage"])
    def test_answers_that_are_no_evidence_are_ignored(self, content: bytes) -> None:
        cluster = Cluster()
        decide(cluster, 1)
        cluster.restart(0)
        handed = cluster.rules.unsigned(Part(0, PartKind.EVIDENCE, content))
        assert not cluster.give(0, Received(1, handed))
        vote = cluster.rules.unsigned(
            Part(0, PartKind.EVIDENCE, cluster.say(LIAR, Prepare(1, 0, bytes(32), LIAR)).wire)
        )
        assert not cluster.give(0, Received(2, vote))

    def test_what_is_larger_than_honest_messages_is_not_even_decoded(self) -> None:
        """Messages in messages take long to read: two megabytes of them 140 ms."""
        cluster = Cluster()
        decide(cluster, 1)
        cluster.restart(0)
        most = sizes_of(cluster.roster).entries
        entries = tuple((0, bytes([number]) * 32) for number in range(most + 2))
        lists = [cluster.say(LIAR, UploadList(1, LIAR, each)) for each in (entries[1:], entries)]
        shown = evidence(cluster, lists[0], lists[1])
        handed = cluster.rules.unsigned(Part(0, PartKind.EVIDENCE, shown.wire))
        assert not cluster.give(0, Received(LIAR, handed))
        assert cluster.parties[0].ignored == {"nobody asked": 1}
