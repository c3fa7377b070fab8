"""A node's answer to an order: a result is verified before anything is learnt from it, and all is on disk before anything is
said."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from fedrfq.consensus.messages import Upload, decode
from fedrfq.errors import UserError
from fedrfq.flower.messages import NodeAnswer, RoundOrder, Row
from fedrfq.flower.node_state import NodeState, SavedState
from fedrfq.flower.shard import Shard, joined
from fedrfq.flower.trust import Result, Trust
from fedrfq.learning.round_loop import participants
from fedrfq.models.stacked import Params


@dataclass(frozen=True)
class FlowerNode:
    """Hosts the clients of the shard, which are those that `trust` has the keys of, and keeps their models."""

    trust: Trust
    shard: Shard
    keeping: NodeState

    def answer(self, order: RoundOrder) -> NodeAnswer:
        """Asked again, the same to the byte. What cannot be believed is a UserError, and nothing has changed."""
        if order.run != self.trust.run:
            found, own = (run[:16] or "nothing is exchanged" for run in (order.run, self.trust.run))
            raise UserError(
                f"the server app speaks of another federation ({found}) than this node's keys are of ({own})"
            )
        if order.hello:
            return NodeAnswer(self.trust.clients)
        rounds = self.trust.experiment.rounds
        if order.round + order.train > rounds:
            raise UserError(
                f"round {order.round + order.train} is refused: this experiment has {rounds}, and ends there"
            )
        with self.keeping.locked():
            return self._answer(order)

    def _answer(self, order: RoundOrder) -> NodeAnswer:
        before = kept = self.keeping.read()
        if order.round < kept.round:
            raise UserError(
                f"the result of round {order.round} is refused, that of round {kept.round} is known here: go on with the "
                f"run from there; a simulated one may begin anew with another folder as state"
            )
        result = self.trust.verified(order.round, order.last)
        if kept.answer is None or kept.round < order.round:
            kept = self._tested(kept, order, result)
        answer = kept.answer
        assert answer is not None
        if order.train and answer.round != order.round + 1:
            kept = self._advanced(kept, answer, order.round + 1, result)
        if kept is not before:
            self.keeping.save(kept)
        assert kept.answer is not None
        if order.train:
            return kept.answer
        return NodeAnswer(answer.clients, figures=answer.figures, left_out=answer.left_out)

    def _tested(self, kept: SavedState, order: RoundOrder, result: Result) -> SavedState:
        """After the result of a round was taken."""
        same = kept.answer is not None and kept.answer.round == order.round
        figures = None
        if order.round:
            parts = (
                self.shard.test(clients, self._models(kept, i), result.globals_, order.round)
                for i, clients in enumerate(self.shard.programs)
            )
            figures = replace(
                joined(list(parts)),
                saturated_K=np.array(kept.cut if same else kept.nothing_cut(), np.int64),
            )
        if same and kept.answer:
            sent = [decode(upload).body for upload in kept.answer.uploads]
        else:
            sent = []
        left_out = tuple(
            body.client
            for body in sent
            if isinstance(body, Upload) and body.client not in result.judged
        )
        answer = NodeAnswer(self.trust.clients, figures=figures, left_out=left_out)
        return SavedState(order.round, order.last, kept.models, kept.nothing_cut(), answer)

    def _advanced(
        self, kept: SavedState, answer: NodeAnswer, number: int, result: Result
    ) -> SavedState:
        """After round `number` was trained. The new models are on disk, and count once what is returned is."""
        who = set(participants(self.trust.experiment, number))
        models = list(kept.models)
        seconds = 0.0
        losses: dict[int, Row] = {}
        cut: dict[int, int] = {}
        contents: dict[int, bytes] = {}
        for i, clients in enumerate(self.shard.programs):
            if who.isdisjoint(clients):
                continue
            params = self._models(kept, i)
            began = time.perf_counter()
            done = self.shard.train(clients, params, number, result.globals_)
            seconds += time.perf_counter() - began
            self.keeping.save_models(i, number, done.params)
            models[i] = number
            losses = losses | done.losses
            cut = cut | done.cut
            contents = contents | done.contents
        answer = replace(
            answer,
            round=number,
            uploads=tuple(
                self.trust.signed(client, number, content) for client, content in contents.items()
            ),
            trained=tuple(losses),
            losses=tuple(losses.values()),
            seconds=seconds,
        )
        cuts = tuple(cut.get(client, 0) for client in self.trust.clients)
        return replace(kept, models=tuple(models), cut=cuts, answer=answer)

    def _models(self, kept: SavedState, program: int) -> Params:
        """A program's models as they were trained last."""
        clients = self.shard.programs[program]
        number = kept.models[program]
        if number == 0:
            return self.shard.start(clients)
        return self.keeping.load_models(program, number, self.shard.start(clients[:1]))
