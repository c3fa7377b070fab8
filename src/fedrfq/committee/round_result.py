"""What remains of a round once the honest servers have decided: the decision, and its proofs."""

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
    Inputs,
    Kind,
    Message,
    Part,
    Upload,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication, Task
from fedrfq.federation.round_log import accusation, changed_parts, outcome, pack, parts
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.aggregation import Decision, admitted
from fedrfq.robust.detectors.detector import Verdict
from fedrfq.simulator.world import SimulatedParty, World

LEFT_OUT = "it reached too few servers in time"
FORGED = "its client has not signed it for this round"


def round_result(simulated: SimulatedRound, world: World, sent: Uploads) -> AgreedRound:
    """Return the result of a world in which all honest servers decided on the uploads sent."""
    round_ = simulated.round
    run = simulated.rules.run
    honest = [world.nodes[server] for server in world.servers if server not in simulated.faulty]
    decided = _common_decision(honest, round_)
    assert decided.outcome is not None
    certificate = decided.certificate
    cert = simulated.rules.unsigned(Cert(round_, certificate))
    before = outcome(simulated.before[1:])
    last_public = b""
    if before is not None:
        last_public = before.public
    # `Decided` does not have the set and its uploads, but honest servers have persisted them.
    durable = _durable_messages(honest)
    set_ = durable[certificate.record.set_]
    assert isinstance(set_.body, Part)
    # The federation of a simulated run cannot be changed, so nobody has proposed anything.
    inputs = Inputs.decode(set_.body.content)
    uploads = [durable[digest] for _, digest in inputs.uploads]
    evidence = _evidence(honest)
    report = AgreementReport(
        run=run,
        view=certificate.view,
        leader=simulated.federation.roster.leader(round_, certificate.view),
        messages=world.messages,
        length=world.bytes,
        evidence=len(evidence),
        entry=pack([cert, *decided.lists, set_, *evidence]),
        bodies=pack(
            [*uploads, *changed_parts(simulated.rules, round_, decided.outcome, last_public)]
        ),
    )
    application = PrototypeApplication(simulated.federation.task)
    decision = _decision(application, decided.outcome, sent)
    return AgreedRound(
        decision, pack([cert, *parts(simulated.rules, round_, decided.outcome)]), report
    )


def _common_decision(honest: Sequence[SimulatedParty], round_: int) -> Decided:
    """Return what all honest servers decided, from one that saw the lists it follows from."""
    decisions = [node.decided[round_] for node in honest]
    if len({decided.certificate.record for decided in decisions}) != 1:
        raise UserError(
            f"the simulated servers decided differently in round {round_}: this is a bug, please"
            " report it"
        )
    # A server that was shown a certificate has seen no lists; the one that has most has them all.
    return max(decisions, key=lambda decided: len(decided.lists))


def _durable_messages(honest: Sequence[SimulatedParty]) -> dict[bytes, Message]:
    """Return the uploads and the parts of decisions in the servers' logs, by their digests."""
    by_digest = {}
    for node in honest:
        for message in node.log:
            body = message.body
            if isinstance(body, Part):
                by_digest[part_digest(body.what, body.content)] = message
            elif isinstance(body, Upload):
                by_digest[message.digest] = message
    return by_digest


def _evidence(honest: Sequence[SimulatedParty]) -> list[Message]:
    """Return one proof of each accusation, from the first server that has one."""
    proofs: dict[tuple[int, Kind, Kind, int], Message] = {}
    for node in honest:
        for message in node.accused:
            assert isinstance(message.body, Evidence)
            proofs.setdefault(accusation(message.body), message)
    return [message for _, message in sorted(proofs.items())]


def _decision(application: PrototypeApplication, decided: Outcome, sent: Uploads) -> Decision:
    """Return an outcome as the round loop knows decisions from one trusted server."""
    memory = application.memory(decided)
    uploads, verdict = apply_verdicts(application.task, decided.verdicts, sent)
    return Decision(uploads, verdict, memory.state, memory.globals_, memory.public)


def apply_verdicts(task: Task, verdicts: bytes, sent: Uploads) -> tuple[Uploads, Verdict]:
    """Return the uploads as they counted before the filter, and the verdict on them.

    Clients that sent an upload and got no verdict were left out. Verdicts on uploads that reached
    the servers by another way are passed over.
    """
    clients, verdict = codec.decode_verdicts(verdicts, task.classes)
    known_K = np.isin(clients, sent.clients)
    verdict = verdict.only(known_K)
    left_out = {client: LEFT_OUT for client in sent.clients if client not in clients}
    counted = replace(
        sent.only(np.isin(sent.clients, clients)), refused={**sent.refused, **left_out}
    )
    return admitted(task.detector, task.classes, counted), verdict


def signed_uploads(
    rules: Rules, task: Task, round_: int, uploads: Mapping[int, Message]
) -> Uploads:
    """Return the uploads that clients signed for this round, and why the others are refused."""
    contents = {}
    for client, message in uploads.items():
        body = message.body
        if not isinstance(body, Upload) or not rules.authentic(message):
            continue
        if (body.client, body.round) == (client, round_):
            contents[client] = body.content
    forged = {client: FORGED for client in uploads if client not in contents}
    admitted = task.form(round_).admit(round_, contents)
    return replace(admitted, refused={**admitted.refused, **forged})
