"""A Flower run's directory: the files of any other run, so reports and auditors read it alike.

Models stay with the nodes that host them; in a simulation those are in state/, and when the run
ends they are brought together in a checkpoint. The round decided last is in decided.safetensors:
from there, a run that was stopped continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrfq.committee.round_result import apply_verdicts, signed_uploads
from fedrfq.consensus.messages import Part, PartKind
from fedrfq.consensus.rules import Rules
from fedrfq.engine.threads import one_thread
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation import codec
from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import unpack
from fedrfq.files.strict_json import to_json
from fedrfq.flower.collected_models import collected
from fedrfq.flower.decided_round import DecidedRound
from fedrfq.flower.messages import Floats, Ints, NodeAnswer, NodeFigures, Singles
from fedrfq.flower.sample_knowledge import SampleKnowledge
from fedrfq.learning import metrics
from fedrfq.learning.all_classes import ALL_WAYS, PACKED_MEASURES, CommonFigures
from fedrfq.learning.evaluation import Round, RoundOutcome, RoundRecord, RunAccuracies, outcome
from fedrfq.learning.public.classifier_file import save_classifiers
from fedrfq.learning.public_stack import PublicStack
from fedrfq.learning.round_loop import LoopState, attackers, held, targets
from fedrfq.privacy.claim import PrivacyClaim
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import Verdict
from fedrfq.runs import privacy_record
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import here, summary
from fedrfq.runs.snapshot import PrototypeSnapshot, save_shares

# The reason in the record of a client that trained, and whose upload is missing.
NOTHING_CAME = "it trained, and no upload of it came"
# The rows of the table of figures.
_HEAD, _ALL, _OWN, _COLLAPSED, _SATURATED = range(5)


@dataclass(frozen=True)
class RunPlan:
    """What a run is about: its experiment, what servers compute, who they are, and the samples.

    There is no federation where nothing is exchanged.
    """

    experiment: Experiment
    task: Task
    federation: Federation | None
    samples: SampleKnowledge


class FlowerRunDirectory:
    """The directory of one run.

    For each round, call `certify`, then `hear` with what the nodes measured, then `record`. The
    figures of a client that is not heard from stay as they were; at first they are 0.
    """

    def __init__(self, run: RunDirectory, plan: RunPlan) -> None:
        self.run = run
        self.experiment = plan.experiment
        self._plan = plan
        self._figures = np.zeros((5, plan.experiment.clients))
        # For each client heard from, its test samples' labels and distances to the prototypes.
        self._samples: dict[int, tuple[Ints, Singles]] = {}
        # For each client heard from in this round, what it knows of all classes.
        self._common: dict[int, Floats] = {}
        # The uploads and the decision of the round recorded last.
        self._last: tuple[Uploads, Decision] | None = None
        self.decided: DecidedRound | None = None

    @staticmethod
    def begin(out: Path, plan: RunPlan) -> FlowerRunDirectory:
        """Create the directory of a new run below `out`."""
        environment = {
            **here(),
            "device_type": "",
            "threads": torch.get_num_threads(),
            **plan.samples.described(),
            "engine": "flower",
        }
        run = RunDirectory.create(out, plan.experiment, environment)
        if plan.federation is not None:
            run.begin_audit(plan.federation)
        return FlowerRunDirectory(run, plan)

    @staticmethod
    def resume(path: Path, plan: RunPlan) -> FlowerRunDirectory:
        """Open a run at the round decided last, whose record is written again.

        The nodes are asked again what they measured with that round.
        """
        directory = FlowerRunDirectory(RunDirectory.open(path), plan)
        directory._check()
        loaded = DecidedRound.load(path)
        if loaded is None:
            directory.run.rewind(0)
            return directory
        decided, directory._figures = loaded
        directory.decided = decided
        # The record of the decided round may be there or not; it is written once, by `record`.
        directory.run.rewind(decided.round - 1)
        # Its proofs may never have been written, and `rewind` has cut them off in any case.
        if decided.report is not None:
            directory.run.prove(decided.report)
        return directory

    @property
    def round(self) -> int:
        """The number of the round decided last; 0 before the first."""
        if self.decided is None:
            return 0
        return self.decided.round

    @property
    def last(self) -> bytes:
        """What the committee continues from."""
        if self.decided is None:
            return b""
        return self.decided.last

    def certify(self, decided: DecidedRound) -> None:
        """Write a decided round, before anybody is told of it."""
        # The order matters: first the rounds before it, then all of this one, then its proofs.
        self.run.sync()
        decided.save(self.run.path, self._figures)
        self.decided = decided
        self._common = {}
        if decided.report is not None:
            self.run.prove(decided.report)

    def hear(self, answers: Iterable[NodeAnswer]) -> None:
        """Take what the nodes measured with the round decided last."""
        for answer in answers:
            if answer.figures is not None and self._fits(answer.figures):
                self._take(answer.clients, answer.figures)

    @one_thread()
    def record(self) -> RoundRecord:
        """Write and return the record of the round decided last."""
        result = self._outcome()
        # `certify` has written its proofs already.
        self.run.append(replace(result, report=None))
        privacy_record.save(self.run, self._claims())
        return result.record

    def _claims(self) -> list[PrivacyClaim]:
        """Return what may be claimed of each client's privacy: no ε, whatever the noise."""
        return privacy_record.without_epsilon(
            self.experiment, self.round, self.experiment.uncovered() or privacy_record.ON_FLOWER
        )

    def finish(self, state: Path) -> dict[str, Any]:
        """Write the last round's prototypes, who held which samples, and the summary; return it.

        Where the nodes' models are below `state`, write a checkpoint with them, too.
        """
        if self._last is not None:
            sent, decision = self._last
            self._save_prototypes(sent, decision.globals_)
            self._save_models(state, decision)
        if shares := self._plan.samples.shares():
            save_shares(self.run.path, shares)
        result = summary(self.run, self.experiment, (None, None))
        result |= privacy_record.summary(self._claims())
        self.run.write("result.json", to_json(result, indent=2) + "\n")
        return result

    def _save_prototypes(self, sent: Uploads, globals_: Globals) -> None:
        """Write the last round's prototypes, if there are any."""
        if not sent.clients or not globals_.present_J.any():
            return
        if self._plan.task.public_in(self.round) is None:
            snapshot = PrototypeSnapshot.of(self.round, sent, globals_)
        else:
            # What clients sent are statistics on the public map.
            snapshot = PrototypeSnapshot.only_global(self.round, globals_)
        snapshot.save(self.run.path)

    def _save_models(self, state: Path, decision: Decision) -> None:
        """Write the clients' models and public classifiers, as `fedrfq predict` reads them."""
        samples = self._plan.samples
        if samples.dataset is None:
            return
        experiment = self.experiment
        params = collected(state, self._run_id, experiment, samples.dataset)
        if params is None:
            return
        # The detector's memory is the committee's. What servers learn is not used on Flower, and
        # attackers that remember do not run on it.
        checkpoint = LoopState(
            round=self.round,
            params=params,
            globals_=(decision.globals_,),
            memory=({},),
            centres={},
            agreed=(self.last,),
            server=({},),
            public=(decision.public,),
            attack=({},),
        )
        self.run.save(checkpoint)
        if decision.public is None:
            return
        malicious = [attackers(experiment)]
        partitions = [samples.partition]
        stack = PublicStack(
            [experiment], partitions, malicious, samples.dataset, torch.device("cpu")
        )
        made = stack.exchanges[0].classifiers(decision.public)
        save_classifiers(self.run.path, made, held(partitions, len(samples.dataset.classes)))

    @property
    def _run_id(self) -> str:
        """What nodes know the run by: where nothing is exchanged, the experiment stands for it."""
        if self._plan.federation is None:
            return self.experiment.hash()
        return self._plan.federation.roster.run.hex()

    def _check(self) -> None:
        """Raise a UserError unless the directory is of this experiment and federation."""
        path = self.run.path
        recorded = None
        if self.run.audited():
            recorded = self.run.federation_text()
        expected = None
        if self._plan.federation is not None:
            expected = self._plan.federation.text
        if self.run.experiment() != self.experiment or recorded != expected:
            raise UserError(
                f"{path} is of another experiment or federation: "
                "leave `resume` empty to start a new run"
            )

    def _fits(self, figures: NodeFigures) -> bool:
        """Whether there are as many figures of each client and sample as classes ask for."""
        columns = len(ALL_WAYS) * (len(PACKED_MEASURES) + self._plan.task.classes)
        if figures.common_KF.shape[1] not in (0, columns):
            return False
        if not self.experiment.method.predicts:
            return True
        return bool(figures.distance_NJ.shape[1] == self._plan.task.classes)

    def _take(self, clients: tuple[int, ...], figures: NodeFigures) -> None:
        rows = (
            figures.head_K,
            figures.prototype_K,
            figures.prototype_own_K,
            figures.collapsed_K,
            figures.saturated_K,
        )
        self._figures[:, list(clients)] = np.stack(rows)
        ends = np.cumsum(figures.samples_K)[:-1]
        samples = zip(np.split(figures.y_N, ends), np.split(figures.distance_NJ, ends), strict=True)
        self._samples |= dict(zip(clients, samples, strict=True))
        if figures.common_KF.shape[1]:
            self._common |= dict(zip(clients, figures.common_KF, strict=True))

    def _outcome(self) -> RoundOutcome:
        decided = self.decided
        assert decided is not None
        sent = self._sent(decided)
        decision = self._decision(decided.last, sent)
        samples = self._plan.samples
        samples.learn(sent, {client: y_N for client, (y_N, _) in self._samples.items()})
        self._last = sent, decision
        who = list(decided.losses)
        losses_K3 = torch.zeros(self.experiment.clients, 3)
        losses_K3[who] = torch.tensor(list(decided.losses.values())).view(-1, 3)
        round_ = Round(
            number=decided.round,
            experiment=self.experiment,
            partition=samples.partition,
            malicious=attackers(self.experiment),
            who=who,
            losses_K3=losses_K3,
            sent=sent,
            decision=decision,
            report=decided.report,
            values=0,
            public=self._plan.task.public_in(decided.round),
            seconds_train=decided.seconds_train,
            seconds=decided.seconds,
        )
        known = targets(self.experiment, decided.round, decision.globals_)
        return outcome(round_, self._accuracies(known))

    def _sent(self, decided: DecidedRound) -> Uploads:
        """Return all uploads that were sent, and why others were refused or are missing."""
        task = self._plan.task
        federation = self._plan.federation
        if federation is None:
            counts_KJ = np.zeros((0, task.classes), np.int64)
            return Uploads((), counts_KJ, np.zeros((0, task.classes, task.values), np.int64))
        sent = signed_uploads(Rules(federation.roster), task, decided.round, decided.uploads)
        missing = {
            client: NOTHING_CAME for client in decided.losses if client not in decided.uploads
        }
        saturated = int(self._figures[_SATURATED, list(sent.clients)].sum())
        return replace(sent, saturated=saturated, refused={**sent.refused, **missing})

    def _decision(self, last: bytes, sent: Uploads) -> Decision:
        """Return the decision in `last`; the detector's memory is the committee's business."""
        task = self._plan.task
        bodies = [placed.message.body for placed in unpack(last)]
        parts = {body.what: body.content for body in bodies if isinstance(body, Part)}
        if not parts:
            nobody = Verdict.on_nobody(task.classes)
            return Decision(sent, nobody, {}, Globals.none(task.classes, task.values))
        globals_ = codec.decode_globals(parts[PartKind.GLOBALS], task.classes, task.values)
        public = codec.decode_public(parts[PartKind.PUBLIC], task.public)
        counted, verdict = apply_verdicts(task, parts[PartKind.VERDICTS], sent)
        return Decision(counted, verdict, {}, globals_, public)

    def _accuracies(self, globals_: Globals) -> RunAccuracies:
        head_K, all_K, own_K, collapsed_K, _ = self._figures
        collapsed = int(collapsed_K.sum())
        common = self._common_figures()
        if not self.experiment.method.predicts:
            return RunAccuracies(head_K, collapsed, None, None, None, common)
        return RunAccuracies(head_K, collapsed, all_K, own_K, self._failure(globals_), common)

    def _common_figures(self) -> CommonFigures | None:
        """Return what the clients know of all classes; None in a round where nobody was tested."""
        if not self._common:
            return None
        unheard_F = np.full_like(next(iter(self._common.values())), np.nan)
        rows = [self._common.get(client, unheard_F) for client in range(self.experiment.clients)]
        return CommonFigures.unpacked(np.stack(rows))

    def _failure(self, globals_: Globals) -> float:
        """Return the prototype failure over the samples of all clients ever heard from."""
        if not self._samples:
            return float("nan")
        samples = [self._samples[client] for client in sorted(self._samples)]
        y_1N = torch.from_numpy(np.concatenate([y_N for y_N, _ in samples]))[None]
        distances = np.concatenate([distance_NJ for _, distance_NJ in samples])
        distance_1NJ = torch.from_numpy(distances)[None]
        present_1J = torch.from_numpy(globals_.present_J)[None]
        tested_1N = torch.ones_like(y_1N, dtype=torch.bool)
        return float(metrics.prototype_failure(distance_1NJ, y_1N, tested_1N, present_1J)[0])
