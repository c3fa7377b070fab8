"""What is left of a round once the honest servers have decided: the decision, and the proofs that are kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedrfq.aggregation import Decision
from fedrfq.committee import layouts
from fedrfq.committee.application import Prototypes
from fedrfq.committee.committee import Agreed, Report
from fedrfq.committee.journal import packed, parts
from fedrfq.committee.sitting import Sitting
from fedrfq.consensus.machine import Decided, Outcome
from fedrfq.consensus.messages import Body, Cert, Evidence, Kind, Message, Upload, author, decode_entries, part_digest
from fedrfq.errors import UserError
from fedrfq.prototypes import Uploads
from fedrfq.simulator.world import Node, World

LEFT_OUT = "it reached too few servers in time"


def minutes(sitting: Sitting, world: World, sent: Uploads) -> Agreed:
    """Of a world in which all honest servers have decided on the uploads that were sent."""
    honest = [world.nodes[server] for server in world.servers if server not in sitting.faulty]
    decided = _decided(honest, sitting.round)
    assert decided.outcome is not None
    durable = _durable(honest)
    set_ = durable[decided.certificate.record.set_]
    assert isinstance(set_.body, Body)
    cert, evidence = sitting.rules.unsigned(Cert(sitting.round, decided.certificate)), _evidence(honest)
    outcome = parts(sitting.rules.run, sitting.round, decided.outcome)
    uploads = [durable[digest] for _, digest in decode_entries(set_.body.content)]
    view = decided.certificate.view
    report = Report(
        run=sitting.rules.run,
        view=view,
        leader=sitting.charter.roster.leader(sitting.round, view),
        messages=world.messages,
        length=world.bytes,
        evidence=len(evidence),
        entry=packed([cert, *decided.lists, set_, *evidence]),
        bodies=packed([*uploads, *outcome]),
    )
    decision = _decision(Prototypes(sitting.charter.task), decided.outcome, sent)
    return Agreed(decision, packed([cert, *outcome]), report)


def _decided(honest: Sequence[Node], round_: int) -> Decided:
    """What all honest servers have decided, of one that saw the lists it follows from."""
    found = [node.decided[round_] for node in honest]
    if len({decided.certificate.record for decided in found}) != 1:
        raise UserError(f"the simulated servers decided differently in round {round_}: this is a defect, please report it")
    return max(found, key=lambda decided: len(decided.lists))


def _durable(honest: Sequence[Node]) -> dict[bytes, Message]:
    """What the servers wrote down: uploads, and parts of the decision, by their digests."""
    found = {}
    for message in (message for node in honest for message in node.log):
        body = message.body
        if isinstance(body, Body):
            found[part_digest(body.what, body.content)] = message
        elif isinstance(body, Upload):
            found[message.digest] = message
    return found


def _evidence(honest: Sequence[Node]) -> list[Message]:
    """One proof for each party, kind of lie and round, whoever found it first."""
    found: dict[tuple[int, Kind, Kind, int], Message] = {}
    for message in (message for node in honest for message in node.accused):
        body = message.body
        assert isinstance(body, Evidence)
        first, second = body.first.body, body.second.body
        party = author(first)
        assert party is not None
        found.setdefault((party, first.kind, second.kind, body.round), message)
    return [message for _, message in sorted(found.items())]


def _decision(application: Prototypes, outcome: Outcome, sent: Uploads) -> Decision:
    """As the round loop has it from one trusted server."""
    globals_, state = application.memory(outcome)
    clients, verdict = layouts.decode_verdicts(outcome.verdicts)
    left_out = {client: LEFT_OUT for client in sent.clients if client not in clients}
    taken = replace(sent.only(np.isin(sent.clients, clients)), refused={**sent.refused, **left_out})
    return Decision(application.task.detector.admitted(taken), verdict, state, globals_)
