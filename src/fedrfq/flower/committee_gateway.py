"""To whom the server app carries signed uploads, and what it brings back: a decision that proves itself. The server app has
nobody's keys, so whatever is done to an upload or a result on the way is found out at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from fedrfq.committee import AgreedRound, AgreementReport, CommitteeSettings, Direct
from fedrfq.committee.round_result import judged, taken
from fedrfq.committee.simulated import Simulated
from fedrfq.consensus.messages import Message, Part, PartKind
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table, name_of
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import toml
from fedrfq.methods import METHODS
from fedrfq.node.courier import Carried, Courier
from fedrfq.node.membership import identity
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.attacks import ATTACKS


class CommitteeGateway(Protocol):
    """The way to a committee. By its charter results are checked; there is none where nothing is exchanged."""

    @property
    def federation(self) -> Federation | None: ...

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        """A round's outcome after one that left `last`, given the clients' signed uploads."""


class SimulatedGateway:
    """The servers are simulated here."""

    def __init__(self, committee: Simulated, mandate: CommitteeSettings) -> None:
        self._committee = committee
        self._mandate = mandate
        self.federation: Federation | None = committee.federation(mandate)

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        return self._committee.carry(self._mandate, number, last, uploads)


class NoGateway:
    """Nothing is exchanged."""

    def __init__(self, mandate: CommitteeSettings) -> None:
        self.federation: Federation | None = None
        self._mandate = mandate

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        task = self._mandate.task
        empty = np.zeros((0, task.classes), np.int64)
        sent = Uploads((), empty, empty[..., None].repeat(task.values, 2))
        nothing = Globals.none(task.classes, task.values)
        return Direct().decide(
            self._mandate, number, b"", task.detector.start(task.clients), nothing, sent
        )


class NetworkGateway:
    """The servers of a real federation, of which `folder` is a courier's. It connects to them for each round anew."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self.federation: Federation = identity.load(folder).federation
        assert self.federation.network is not None
        self.experiment = from_table(toml.strict(self.federation.network.experiment))
        check(self.experiment)

    def check(self, known: int) -> None:
        """That the committee can be reached, and has decided no more than the round after this one."""
        if (found := asyncio.run(self._latest())) is not None and found.round > known + 1:
            raise UserError(
                f"the committee has decided round {found.round}, and this run knows of {known}: go on with the run that "
                f"carried them, resume='DIR'"
            )

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        found = asyncio.run(self._carried(number, list(uploads.values())))
        if found.round != number:
            raise UserError(
                f"the committee has decided round {found.round} without this app, which carries round {number}: go on with "
                f"the run that carried the others, resume='DIR'; if there is none, clients go on by `fedrfq client`"
            )
        rules = Rules(self.federation.roster)
        certificate = found.certificate
        task = self.federation.task
        cert, *parts = [placed.message for placed in unpack(found.packed)]
        report = AgreementReport(
            run=rules.run,
            view=certificate.view,
            leader=rules.roster.leader(number, certificate.view),
            messages=0,  # that servers and clients exchange is not seen from here
            length=0,
            evidence=0,
            entry=pack([cert]),
            bodies=pack(parts),
        )
        globals_ = codec.decode_globals(found.globals_, task.classes, task.values)
        counted, verdict = judged(task, found.verdicts, taken(rules, task, number, uploads))
        return AgreedRound(Decision(counted, verdict, {}, globals_), found.packed, report)

    async def _carried(self, number: int, uploads: list[Message]) -> Carried:
        async with Courier.open(self._folder) as courier:
            return await courier.carry(number, uploads, self._patience_s)

    async def _latest(self) -> Carried | None:
        async with Courier.open(self._folder) as courier:
            return await courier.latest(self._patience_s)


def gateway(experiment: Experiment, mandate: CommitteeSettings) -> CommitteeGateway:
    """To the committee that the experiment names."""
    check(experiment)
    if not experiment.method.exchanges:
        return NoGateway(mandate)
    if not isinstance(experiment.committee, Simulated):
        raise UserError(
            'clients on Flower believe certificates alone: set committee.name = "simulated", or give `federation`'
        )
    return SimulatedGateway(experiment.committee, mandate)


def check(experiment: Experiment) -> None:
    """That clients who sign for themselves can run it."""
    if experiment.method.centres:
        method = name_of(METHODS, experiment.method)
        raise UserError(
            f"method '{method}' averages models, and the app carries prototypes: use fedrfq, fedproto or local"
        )
    if experiment.attack.on_uploads:
        attack = name_of(ATTACKS, experiment.attack)
        raise UserError(
            f"attack '{attack}' changes uploads that clients have signed: use label-flip, or `fedrfq run`"
        )


def letter(last: bytes) -> bytes:
    """What clients are told of a round: what the committee goes on from, less the detector's memory."""
    messages = [placed.message for placed in unpack(last)]
    return pack(
        m for m in messages if not (isinstance(m.body, Part) and m.body.what == PartKind.STATE)
    )


def changed(last: bytes) -> bool:
    """Whether the federation was changed in the round that left this, with which its run is over."""
    bodies = (placed.message.body for placed in unpack(last))
    return any(
        isinstance(b, Part) and b.what == PartKind.VERDICTS and codec.successor_in(b.content)
        for b in bodies
    )
