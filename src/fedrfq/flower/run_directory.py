"""A Flower run's directory: the files of any other run, so that reports and auditors read it as they read those.

Models stay with the nodes that host them; in a simulation that is in state/. decided.safetensors is the round that was
decided last: from there a run that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrfq.committee.round_result import judged, taken
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
from fedrfq.flower.decided_round import DecidedRound
from fedrfq.flower.messages import Ints, NodeAnswer, Singles, TestFigures
from fedrfq.flower.sample_knowledge import SampleKnowledge
from fedrfq.learning import metrics
from fedrfq.learning.evaluation import Round, RoundOutcome, RoundRecord, RunAccuracies, outcome
from fedrfq.learning.round_loop import attackers
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import Verdict
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import here, summary
from fedrfq.runs.snapshot import PrototypeSnapshot, save_shares

NOTHING_CAME = "it trained, and no upload of it came"
_HEAD, _ALL, _OWN, _COLLAPSED, _SATURATED = range(5)


class FlowerRunDirectory:
    """Of one run. A round is `certify`ed, then what the nodes found with it is `hear`d, then it is `record`ed. Of a client
    that is not heard from, the figures stand as they were last; before that they are 0."""

    def __init__(
        self,
        run: RunDirectory,
        experiment: Experiment,
        task: Task,
        federation: Federation | None,
        ground: SampleKnowledge,
    ) -> None:
        self.run = run
        self.experiment = experiment
        self._task = task
        self._charter = federation
        self._ground = ground
        self._figures = np.zeros((5, experiment.clients))
        self._samples: dict[int, tuple[Ints, Singles]] = {}
        self._last: tuple[Uploads, Globals] | None = None  # of the round recorded last
        self.decided: DecidedRound | None = None

    @staticmethod
    def begin(
        out: Path,
        experiment: Experiment,
        task: Task,
        federation: Federation | None,
        ground: SampleKnowledge,
    ) -> FlowerRunDirectory:
        environment = {
            **here(),
            "device_type": "",
            "threads": torch.get_num_threads(),
            **ground.described(),
            "engine": "flower",
        }
        run = RunDirectory.create(out, experiment, environment)
        if federation is not None:
            run.begin_audit(federation)
        return FlowerRunDirectory(run, experiment, task, federation, ground)

    @staticmethod
    def resume(
        path: Path,
        experiment: Experiment,
        task: Task,
        federation: Federation | None,
        ground: SampleKnowledge,
    ) -> FlowerRunDirectory:
        """From the round decided last. Its record is made again, since the nodes are asked again what they found."""
        book = FlowerRunDirectory(RunDirectory.open(path), experiment, task, federation, ground)
        book._check()
        found = DecidedRound.load(path)
        if found is None:
            book.run.rewind(0)
            return book
        book.decided, book._figures = found
        book.run.rewind(book.decided.round - 1)
        if book.decided.report is not None:
            book.run.prove(book.decided.report)
        return book

    @property
    def round(self) -> int:
        """The last one decided."""
        if self.decided:
            return self.decided.round
        return 0

    @property
    def last(self) -> bytes:
        """What the committee goes on from."""
        if self.decided:
            return self.decided.last
        return b""

    def certify(self, decided: DecidedRound) -> None:
        """On disk before anybody is told: what is written of the rounds before, then all of this one, then its proofs."""
        self.run.sync()
        decided.save(self.run.path, self._figures)
        self.decided = decided
        if decided.report is not None:
            self.run.prove(decided.report)

    def hear(self, answers: Iterable[NodeAnswer]) -> None:
        """What nodes found when they tested their models with the round decided last."""
        for answer in answers:
            if answer.figures is not None and self._fits(answer.figures):
                self._note(answer.clients, answer.figures)

    @one_thread()
    def record(self) -> RoundRecord:
        """The line of the round decided last."""
        found = self._outcome()
        self.run.append(replace(found, report=None))  # its proofs are there already
        return found.record

    def finish(self) -> dict[str, Any]:
        """The summary, written beside the records, the last round's prototypes, and who held what."""
        if self._last is not None and self._last[0].clients:
            PrototypeSnapshot.of(self.round, *self._last).save(self.run.path)
        if found := self._ground.shares():
            save_shares(self.run.path, found)
        result = summary(self.run, self.experiment, (None, None))
        self.run.write("result.json", to_json(result, indent=2) + "\n")
        return result

    def _check(self) -> None:
        """That the directory is of this experiment and committee."""
        path = self.run.path
        federation = self._charter
        if self.run.audited():
            before = (path / "federation.toml").read_text(encoding="utf-8")
        else:
            before = None
        if self.run.experiment() != self.experiment or before != (
            federation.text if federation else None
        ):
            raise UserError(
                f"{path} is of another experiment or federation than this: leave `resume` empty to start anew"
            )

    def _fits(self, figures: TestFigures) -> bool:
        return (
            not self.experiment.method.exchanges
            or figures.distance_NJ.shape[1] == self._task.classes
        )

    def _note(self, clients: tuple[int, ...], figures: TestFigures) -> None:
        rows = (
            figures.head_K,
            figures.prototype_K,
            figures.prototype_own_K,
            figures.collapsed_K,
            figures.saturated_K,
        )
        self._figures[:, list(clients)] = np.stack(rows)
        ends = np.cumsum(figures.samples_K)[:-1]
        split = zip(np.split(figures.y_N, ends), np.split(figures.distance_NJ, ends), strict=True)
        self._samples |= dict(zip(clients, split, strict=True))

    def _outcome(self) -> RoundOutcome:
        decided = self.decided
        assert decided is not None
        sent = self._sent(decided)
        decision = self._decision(decided.last, sent)
        who = list(decided.losses)
        losses_K3 = torch.zeros(self.experiment.clients, 3)
        losses_K3[who] = torch.tensor(list(decided.losses.values())).view(-1, 3)
        self._ground.learn(sent, {client: y_N for client, (y_N, _) in self._samples.items()})
        self._last = sent, decision.globals_
        done = Round(
            number=decided.round,
            experiment=self.experiment,
            partition=self._ground.partition,
            malicious=attackers(self.experiment),
            who=who,
            losses_K3=losses_K3,
            sent=sent,
            decision=decision,
            report=decided.report,
            values=0,
            seconds_train=decided.seconds_train,
            seconds=decided.seconds,
        )
        return outcome(done, self._measured(decision.globals_))

    def _sent(self, decided: DecidedRound) -> Uploads:
        """All that was sent, with who did not send what it should have."""
        task = self._task
        if self._charter is None:
            empty = np.zeros((0, task.classes), np.int64)
            return Uploads((), empty, np.zeros((*empty.shape, task.values), np.int64))
        found = taken(Rules(self._charter.roster), task, decided.round, decided.uploads)
        missing = {
            client: NOTHING_CAME for client in decided.losses if client not in decided.uploads
        }
        saturated = int(self._figures[_SATURATED, list(found.clients)].sum())
        return replace(found, saturated=saturated, refused={**found.refused, **missing})

    def _decision(self, last: bytes, sent: Uploads) -> Decision:
        """As `last` has it; what the detector remembers is the committee's affair."""
        task = self._task
        bodies = [placed.message.body for placed in unpack(last)]
        parts = {body.what: body.content for body in bodies if isinstance(body, Part)}
        if not parts:
            nothing = np.zeros(0, np.int64)
            return Decision(
                sent, Verdict(nothing > 0, nothing), {}, Globals.none(task.classes, task.values)
            )
        globals_ = codec.decode_globals(parts[PartKind.GLOBALS], task.classes, task.values)
        return Decision(*judged(task, parts[PartKind.VERDICTS], sent), {}, globals_)

    def _measured(self, globals_: Globals) -> RunAccuracies:
        head_K, all_K, own_K, collapsed_K, _ = self._figures
        if self._charter is None:
            return RunAccuracies(head_K, int(collapsed_K.sum()), None, None, None)
        return RunAccuracies(head_K, int(collapsed_K.sum()), all_K, own_K, self._failure(globals_))

    def _failure(self, globals_: Globals) -> float:
        """Over the samples of all clients that were ever heard from here."""
        if not self._samples:
            return float("nan")
        samples = [self._samples[client] for client in sorted(self._samples)]
        y_N, distance_NJ = (np.concatenate(column) for column in zip(*samples, strict=True))
        y_1N = torch.from_numpy(y_N)[None]
        distance_1NJ = torch.from_numpy(distance_NJ)[None]
        present_1J = torch.from_numpy(globals_.present_J)[None]
        return float(
            metrics.prototype_failure(
                distance_1NJ, y_1N, torch.ones_like(y_1N, dtype=torch.bool), present_1J
            )[0]
        )
