"""How a node answers an order.

A result is verified before anything is learnt from it, and everything is on disk before anything
is said.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from fedrfq.consensus.messages import Upload, decode
from fedrfq.errors import UserError
from fedrfq.flower.messages import Losses, NodeAnswer, RoundOrder
from fedrfq.flower.node_state import NodeState, SavedState
from fedrfq.flower.shard import Shard, joined
from fedrfq.flower.trust import Result, Trust
from fedrfq.learning.round_loop import participants
from fedrfq.models.stacked import Params


@dataclass(frozen=True)
class FlowerNode:
    """Hosts the clients of the shard, whose keys `trust` holds and whose models `state` keeps."""

    trust: Trust
    shard: Shard
    state: NodeState

    def answer(self, order: RoundOrder) -> NodeAnswer:
        """Answer the order; asked again, the answer is the same to the byte.

        Raise a UserError, and change nothing, if the order cannot be believed.
        """
        if order.run != self.trust.run:
            raise UserError(
                f"the server app runs another federation ({_short(order.run)}) than the one whose "
                f"keys this node has ({_short(self.trust.run)}): start the app for that one"
            )
        if order.hello:
            return NodeAnswer(self.trust.clients)
        rounds = self.trust.experiment.rounds
        next_round = order.round + order.train
        if next_round > rounds:
            raise UserError(f"round {next_round} is refused: this experiment has {rounds} rounds")
        with self.state.locked():
            return self._answer(order)

    def _answer(self, order: RoundOrder) -> NodeAnswer:
        before = self.state.read()
        # An old result, certified or not, would make the clients train a round twice.
        if order.round < before.round:
            raise UserError(
                f"the result of round {order.round} is refused, since this node knows that of "
                f"round {before.round}: resume the run from there, or, if its federation is "
                "simulated, start anew with another folder as state"
            )
        result = self.trust.verified(order.round, order.last, before.public)
        saved = before
        if saved.answer is None or saved.round < order.round:
            saved = self._tested(saved, order, result)
        answer = saved.answer
        assert answer is not None
        if order.train and answer.round != order.round + 1:
            saved = self._trained(saved, order.round + 1, result)
        # Nothing may be said that a crash could make the node forget: it might sign twice.
        if saved is not before:
            self.state.save(saved)
        assert saved.answer is not None
        if order.train:
            return saved.answer
        return NodeAnswer(answer.clients, figures=answer.figures, left_out=answer.left_out)

    def _tested(self, saved: SavedState, order: RoundOrder, result: Result) -> SavedState:
        """Return the state after the models were tested with the result of a round."""
        # Uploads and clipped values count only if they are of the round that was decided.
        clipped = saved.nothing_clipped()
        left_out: tuple[int, ...] = ()
        if saved.answer is not None and saved.answer.round == order.round:
            clipped = saved.clipped
            left_out = _left_out(saved.answer, result)
        figures = None
        if order.round:
            known = self.shard.classifiers(order.round, result.public)
            parts = [
                self.shard.test(
                    clients, self.models(saved, program), result.globals_, order.round, known
                )
                for program, clients in enumerate(self.shard.programs)
            ]
            figures = replace(joined(parts), saturated_K=np.array(clipped, np.int64))
        answer = NodeAnswer(self.trust.clients, figures=figures, left_out=left_out)
        return SavedState(
            round=order.round,
            last=order.last,
            public=result.public_part,
            models=saved.models,
            clipped=saved.nothing_clipped(),
            answer=answer,
        )

    def _trained(self, saved: SavedState, number: int, result: Result) -> SavedState:
        """Return the state after round `number` was trained.

        The new models are on disk by then, but count only once the returned state is saved.
        """
        assert saved.answer is not None
        who = set(participants(self.trust.experiment, number))
        models = list(saved.models)
        seconds = 0.0
        losses: dict[int, Losses] = {}
        clipped: dict[int, int] = {}
        contents: dict[int, bytes] = {}
        for program, clients in enumerate(self.shard.programs):
            # Clients that sit the round out keep their models.
            if who.isdisjoint(clients):
                continue
            params = self.models(saved, program)
            began = time.perf_counter()
            trained = self.shard.train(clients, params, number, result.globals_)
            seconds += time.perf_counter() - began
            self.state.save_models(program, number, trained.params)
            models[program] = number
            losses |= trained.losses
            clipped |= trained.clipped
            contents |= trained.contents
        uploads = [
            self.trust.signed(client, number, content) for client, content in contents.items()
        ]
        answer = replace(
            saved.answer,
            round=number,
            uploads=tuple(uploads),
            trained=tuple(losses),
            losses=tuple(losses.values()),
            seconds=seconds,
        )
        clipped_K = tuple(clipped.get(client, 0) for client in self.trust.clients)
        return replace(saved, models=tuple(models), clipped=clipped_K, answer=answer)

    def models(self, saved: SavedState, program: int) -> Params:
        """Return a program's models as they were trained last."""
        clients = self.shard.programs[program]
        number = saved.models[program]
        if number == 0:
            return self.shard.start(clients)
        return self.state.load_models(program, number, self.shard.start(clients[:1]))


def _left_out(answer: NodeAnswer, result: Result) -> tuple[int, ...]:
    """Return the clients that sent an upload on which there is no verdict."""
    bodies = [decode(upload).body for upload in answer.uploads]
    return tuple(
        body.client
        for body in bodies
        if isinstance(body, Upload) and body.client not in result.judged
    )


def _short(run: str) -> str:
    return run[:16] or "nothing is exchanged"
