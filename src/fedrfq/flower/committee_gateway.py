"""Carries signed uploads to a committee, and brings back a decision that proves itself.

The server app has nobody's keys, so whoever receives an upload or a result at the end of the way
can tell if it was changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from fedrfq.committee import AgreedRound, AgreementReport, CommitteeSettings, Direct, PreviousRound
from fedrfq.committee.round_result import apply_verdicts, signed_uploads
from fedrfq.committee.simulated import Simulated
from fedrfq.consensus.messages import Message
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table, name_of
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import toml
from fedrfq.flower.packed_result import public_in
from fedrfq.methods import METHODS
from fedrfq.node.courier import Carried, Courier
from fedrfq.node.membership import identity
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.attacks import ATTACKS
from fedrfq.runs import privacy_record


class CommitteeGateway(Protocol):
    """The way to a committee."""

    @property
    def federation(self) -> Federation | None:
        """The federation by whose keys results are checked; None where nothing is exchanged."""

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        """Return the outcome of round `number`, given its signed uploads and the last result."""


class SimulatedGateway:
    """Carries uploads to servers that are simulated in this process."""

    def __init__(self, committee: Simulated, settings: CommitteeSettings) -> None:
        self._committee = committee
        self._settings = settings
        self.federation: Federation | None = committee.federation(settings)

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        """Let the simulated servers agree on the round."""
        return self._committee.carry(self._settings, number, last, uploads)


class NoGateway:
    """Stands in for a committee where nothing is exchanged."""

    def __init__(self, settings: CommitteeSettings) -> None:
        self.federation: Federation | None = None
        self._settings = settings

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        """Return a decision on no uploads, without prototypes."""
        task = self._settings.task
        counts_KJ = np.zeros((0, task.classes), np.int64)
        values_KJV = np.zeros((0, task.classes, task.values), np.int64)
        return Direct().decide(
            self._settings,
            number,
            PreviousRound.start(task),
            Uploads((), counts_KJ, values_KJV),
        )


class NetworkGateway:
    """Carries uploads to the servers of a real federation; `folder` is that of one of its couriers.

    It connects to the servers anew for each round, so a long round holds no connections open.
    """

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self.federation: Federation = identity.load(folder).federation
        assert self.federation.network is not None
        self.experiment = from_table(toml.strict(self.federation.network.experiment))
        check_experiment(self.experiment)

    def check(self, known: int) -> None:
        """Raise a UserError if the committee is too far ahead of a run that knows `known` rounds.

        It may be one round ahead: then the run was stopped before it heard of the decision.
        """
        latest = asyncio.run(self._latest())
        if latest is not None and latest.round > known + 1:
            raise UserError(
                f"the committee has decided round {latest.round}, but this run knows only {known}: "
                "continue the run that carried the other rounds, with resume='DIR'"
            )

    def carry(self, number: int, last: bytes, uploads: Mapping[int, Message]) -> AgreedRound:
        """Hand the uploads to the servers, and wait until they have decided the round."""
        public = public_in(last)
        carried = asyncio.run(self._carried(number, list(uploads.values()), public))
        if carried.round != number:
            raise UserError(
                f"the committee decided round {carried.round} without this app, which carries "
                f"round {number}: continue the run that carried the others, with resume='DIR', "
                "or, if there is none, run the clients with `fedrfq client`"
            )
        # The courier has checked the certificate, and the parts against its digests.
        rules = Rules(self.federation.roster)
        task = self.federation.task
        globals_ = codec.decode_globals(carried.globals_, task.classes, task.values)
        sent = signed_uploads(rules, task, number, uploads)
        counted, verdict = apply_verdicts(task, carried.verdicts, sent)
        statistics = codec.decode_public(carried.public, task.public)
        decision = Decision(counted, verdict, {}, globals_, statistics)
        report = _report(rules, number, carried, carried.public != public)
        return AgreedRound(decision, carried.packed, report)

    async def _carried(self, number: int, uploads: list[Message], public: bytes) -> Carried:
        async with Courier.open(self._folder, public) as courier:
            return await courier.carry(number, uploads, self._patience_s)

    async def _latest(self) -> Carried | None:
        async with Courier.open(self._folder) as courier:
            return await courier.latest(self._patience_s)


def _report(rules: Rules, number: int, carried: Carried, has_new_public: bool) -> AgreementReport:
    """Return how the round was agreed on, as far as a courier can see it."""
    view = carried.certificate.view
    cert, *parts = [placed.message for placed in unpack(carried.packed)]
    if not has_new_public:
        # PUBLIC is the last part.
        parts.pop()
    return AgreementReport(
        run=rules.run,
        view=view,
        leader=rules.roster.leader(number, view),
        # A courier does not see what servers and clients send to each other.
        messages=0,
        length=0,
        evidence=0,
        entry=pack([cert]),
        bodies=pack(parts),
    )


def gateway(experiment: Experiment, settings: CommitteeSettings) -> CommitteeGateway:
    """Return the way to the committee that the experiment names."""
    check_experiment(experiment)
    if not experiment.method.exchanges and not experiment.public.used:
        return NoGateway(settings)
    if not isinstance(experiment.committee, Simulated):
        raise UserError(
            "clients on Flower accept only certified results: "
            'set committee.name = "simulated", or give `federation`'
        )
    return SimulatedGateway(experiment.committee, settings)


def check_experiment(experiment: Experiment) -> None:
    """Raise a UserError unless clients that sign their own uploads can run the experiment."""
    if experiment.method.centres:
        method = name_of(METHODS, experiment.method)
        raise UserError(
            f"method '{method}' averages models, but the Flower app carries prototypes: "
            "use fedrfq, fedproto or local"
        )
    if experiment.method.trains_server:
        method = name_of(METHODS, experiment.method)
        raise UserError(
            f"method '{method}' trains one trusted server on single uploads, "
            "but clients on Flower accept only what a committee certified: use `fedrfq run`"
        )
    if experiment.attack.on_uploads:
        attack = name_of(ATTACKS, experiment.attack)
        raise UserError(
            f"attack '{attack}' changes uploads after clients have signed them: "
            "use label-flip, or `fedrfq run`"
        )
    if experiment.train.private:
        raise UserError(
            f"train.dp_noise gives no ε here: {privacy_record.ON_FLOWER}; use `fedrfq run`"
        )
    if experiment.privacy.budget:
        raise UserError(
            f"privacy.budget cannot be kept, since there is no ε: {privacy_record.ON_FLOWER}; "
            "remove the budget, or use `fedrfq client` or `fedrfq run`"
        )
