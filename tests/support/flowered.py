"""Small runs without Flower to compare nodes with, and nodes without one of Flower's engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedrfq.consensus.events import Outcome as Certified
from fedrfq.consensus.messages import Cert, Commit, Inputs, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.data import Dataset
from fedrfq.experiment import Experiment
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import pack, parts, unpack
from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.files import toml
from fedrfq.flower.clientapp import answered, node
from fedrfq.flower.messages import NodeAnswer, RoundOrder
from fedrfq.flower.node import FlowerNode
from fedrfq.flower.packed_result import result_for_clients
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.round_loop import LoopState, RoundLoop, committee_settings
from fedrfq.prototypes.fixed_point import Globals
from support.judging import ruling
from support.small import CPU, tiny

NOTHING = {"committee": {"name": "direct"}, "method": {"name": "local"}}


def experiment(alone: bool = True, **changes: Any) -> Experiment:
    """Return a tiny experiment with four simulated servers.

    With `alone`, a client's bytes do not depend on which others its node hosts.
    """
    simulated = tiny(**toml.merge({"committee": {"name": "simulated"}}, changes))
    return replace(simulated, train=replace(simulated.train, alone=alone))


@dataclass(frozen=True)
class Done:
    """A round of `fedrfq run`: the certified result, the signed uploads, and the state after it."""

    last: bytes
    uploads: tuple[bytes, ...]
    state: LoopState
    outcome: RoundOutcome


def rounds(experiment: Experiment, dataset: Dataset, number: int = 3) -> list[Done]:
    """Run so many rounds without Flower."""
    loop = RoundLoop([experiment], dataset, CPU)
    done = []
    state = loop.start()
    for _ in range(number):
        state, (outcome,) = loop.advance(state)
        messages = []
        if outcome.report:
            messages = [placed.message for placed in unpack(outcome.report.bodies)]
        uploads = tuple(message.wire for message in messages if isinstance(message.body, Upload))
        done.append(Done(result(state), uploads, state, outcome))
    return done


def result(state: LoopState) -> bytes:
    """Return the last round's result as clients get it."""
    return result_for_clients(state.agreed[0])


def order(
    experiment: Experiment, round_: int, last: bytes, train: bool = True, state: Path | str = ""
) -> RoundOrder:
    """Return the order that the server app would send after a round."""
    text = toml.dump(experiment.table())
    return RoundOrder(run_of(experiment), text, round_, last, train, state=str(state))


def run_of(experiment: Experiment) -> str:
    """Return the run id in hex; empty where nothing is exchanged."""
    federation = experiment.committee.federation(committee_settings(experiment, 10))
    if federation:
        return federation.roster.run.hex()
    return ""


def certified(
    federation: Federation,
    signers: Sequence[Ed25519Signer],
    round_: int,
    globals_: Globals,
    clients: Sequence[int],
    successor: bytes = b"",
) -> bytes:
    """Return a result with verdicts on these clients' uploads, signed by these servers."""
    verdict = ruling([True] * len(clients), [0] * len(clients), federation.task.classes)
    outcome = Certified(
        codec.encode_globals(globals_),
        codec.encode_verdicts(tuple(clients), verdict),
        b"",
        successor=successor,
    )
    rules = Rules(federation.roster)
    record = rules.record(round_, bytes(32), Inputs(), outcome)
    votes = [Commit(round_, 0, record.value(rules.run), server) for server in range(len(signers))]
    signed = [rules.signed(vote, signer) for vote, signer in zip(votes, signers, strict=True)]
    cert = rules.unsigned(Cert(round_, rules.certificate(signed, record)))
    return pack([cert, *parts(rules, round_, outcome)[:2]])


def sent_to(place: int, nodes: int, order: RoundOrder) -> NodeAnswer:
    """Return a node's answer, with both messages as they go over the wire."""
    answer = answered(order.record(), config_of(place, nodes), {})
    return NodeAnswer.read(answer.record())


def node_of(place: int, nodes: int, order: RoundOrder) -> FlowerNode:
    """Return the node that would answer the order."""
    return node(order, config_of(place, nodes), {})


def config_of(place: int, nodes: int) -> dict[str, str | int]:
    """Return the configuration of one of so many simulated nodes."""
    return {"partition-id": place, "num-partitions": nodes, "device": "cpu"}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
