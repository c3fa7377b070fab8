"""What is left of a round once the honest servers have decided: the decision, and the proofs that are kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedrfq.committee.committee import AgreedRound, AgreementReport
from fedrfq.committee.simulated_round import SimulatedRound
from fedrfq.consensus.events import Decided, Outcome
from fedrfq.consensus.messages import (
    Cert,
    Evidence,
    Kind,
    Message,
    Part,
    Upload,
    author,
    decode_entries,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication, Task
from fedrfq.federation.round_log import pack, parts
from fedrfq.prototypes.fixed_point import Uploads, admit
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import Verdict
from fedrfq.simulator.world import SimulatedParty, World

LEFT_OUT = "it reached too few servers in time"
FORGED = "its client has not signed it for this round"


def round_result(sitting: SimulatedRound, world: World, sent: Uploads) -> AgreedRound:
    """Of a world in which all honest servers have decided on the uploads that were sent."""
    honest = [world.nodes[server] for server in world.servers if server not in sitting.faulty]
    decided = _decided(honest, sitting.round)
    assert decided.outcome is not None
    durable = _durable(honest)
    set_ = durable[decided.certificate.record.set_]
    assert isinstance(set_.body, Part)
    cert = sitting.rules.unsigned(Cert(sitting.round, decided.certificate))
    evidence = _evidence(honest)
    outcome = parts(sitting.rules.run, sitting.round, decided.outcome)
    uploads = [durable[digest] for _, digest in decode_entries(set_.body.content)]
    view = decided.certificate.view
    report = AgreementReport(
        run=sitting.rules.run,
        view=view,
        leader=sitting.federation.roster.leader(sitting.round, view),
        messages=world.messages,
        length=world.bytes,
        evidence=len(evidence),
        entry=pack([cert, *decided.lists, set_, *evidence]),
        bodies=pack([*uploads, *outcome]),
    )
    decision = _decision(PrototypeApplication(sitting.federation.task), decided.outcome, sent)
    return AgreedRound(decision, pack([cert, *outcome]), report)


def _decided(honest: Sequence[SimulatedParty], round_: int) -> Decided:
    """What all honest servers have decided, of one that saw the lists it follows from."""
    found = [node.decided[round_] for node in honest]
    if len({decided.certificate.record for decided in found}) != 1:
        raise UserError(
            f"the simulated servers decided differently in round {round_}: this is a defect, please report it"
        )
    return max(found, key=lambda decided: len(decided.lists))


def _durable(honest: Sequence[SimulatedParty]) -> dict[bytes, Message]:
    """What the servers wrote down: uploads, and parts of the decision, by their digests."""
    found = {}
    for message in (message for node in honest for message in node.log):
        body = message.body
        if isinstance(body, Part):
            found[part_digest(body.what, body.content)] = message
        elif isinstance(body, Upload):
            found[message.digest] = message
    return found


def _evidence(honest: Sequence[SimulatedParty]) -> list[Message]:
    """One proof for each party, kind of lie and round, whoever found it first."""
    found: dict[tuple[int, Kind, Kind, int], Message] = {}
    for message in (message for node in honest for message in node.accused):
        body = message.body
        assert isinstance(body, Evidence)
        first = body.first.body
        second = body.second.body
        party = author(first)
        assert party is not None
        found.setdefault((party, first.kind, second.kind, body.round), message)
    return [message for _, message in sorted(found.items())]


def _decision(application: PrototypeApplication, outcome: Outcome, sent: Uploads) -> Decision:
    """As the round loop has it from one trusted server."""
    globals_, state = application.memory(outcome)
    return Decision(*judged(application.task, outcome.verdicts, sent), state, globals_)


def judged(task: Task, verdicts: bytes, sent: Uploads) -> tuple[Uploads, Verdict]:
    """The uploads as they counted before the filter, and the verdict on them; whoever sent one and has none was left out.
    Verdicts on uploads that reached the servers by another way are passed over."""
    clients, verdict = codec.decode_verdicts_without_successor(verdicts)
    known_K = np.isin(clients, sent.clients)
    verdict = Verdict(verdict.kept_K[known_K], verdict.score_K[known_K])
    left_out = {client: LEFT_OUT for client in sent.clients if client not in clients}
    counted = replace(
        sent.only(np.isin(sent.clients, clients)), refused={**sent.refused, **left_out}
    )
    return task.detector.admitted(counted), verdict


def taken(rules: Rules, task: Task, round_: int, uploads: Mapping[int, Message]) -> Uploads:
    """What clients say in the uploads that they signed for this round; of the others, why they are refused."""
    signed = {
        client: m.body
        for client, m in uploads.items()
        if isinstance(m.body, Upload) and rules.authentic(m)
    }
    right = {
        client: b.content for client, b in signed.items() if (b.client, b.round) == (client, round_)
    }
    forged = {client: FORGED for client in uploads if client not in right}
    found = admit(round_, right, task.classes, task.values, task.precision)
    return replace(found, refused={**found.refused, **forged})
