"""The contract of methods: losses that live, clients that know nothing of each other, seeds."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrfq.api.contracts.contract import Broken, expect
from fedrfq.api.contracts.example_runs import (
    CPU,
    MLP,
    equal,
    pictures,
    rows_of,
    run,
    timeless,
    tiny,
)
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import LoopState, RoundLoop, participants
from fedrfq.methods import METHODS
from fedrfq.methods.method import Batch, Guide, Method
from fedrfq.robust.rules import RULES

SENT = ("parameters_up", "parameters_down", "bytes_up", "bytes_down", "samples", "participants")


def reweighted(name: str) -> dict[str, Any]:
    """Return the method with another value of every option that runs of a stack may differ in."""
    method: Method = METHODS[name]()
    for field in fields(method):
        try:
            other = replace(method, **{field.name: _another(getattr(method, field.name))})
        except UserError:
            continue  # out of its range
        if other.program() == method.program():
            method = other
    return {"name": name, **asdict(method)}


def _another(value: Any) -> Any:
    """Return another value of an option, within most options' ranges."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 0.7 * value + 0.1
    if value in RULES:
        return "median"
    return value


def losses_are_finite_and_alive(name: str) -> None:
    """Two rounds of training have losses that are finite, above zero, and move every model."""
    experiment = tiny(method={"name": name}, model=MLP)
    loop = RoundLoop([experiment], pictures(), CPU)
    start = loop.start()
    state = start
    for _ in range(2):
        state, (outcome,) = loop.advance(state)
        for key in ("loss", "loss_classification"):
            value = getattr(outcome.record, key)
            expect(math.isfinite(value) and value > 0, f"{key} is {value} in a round")
        added = outcome.record.loss_prototype
        expect(added is None or math.isfinite(added), f"the added loss is {added}")
    # In the second round there are prototypes to be drawn to.
    if experiment.method.exchanges:
        expect(added, "the added loss is 0: prototypes are exchanged for nothing")
    for key, p in state.params[0].items():
        expect(not torch.equal(p, start.params[0][key]), f"training leaves {key} as it was")


def the_same_seed_gives_the_same_bytes(name: str) -> None:
    """Two runs of one seed end in the same models and prototypes, to the bit."""
    ends = [run([tiny(method={"name": name}, model=MLP)], pictures(), 2)[0] for _ in range(2)]
    expect(equal(ends[0].params, ends[1].params), "the models differ: draw from rng alone")
    one, other = (end.globals_[0].values_JV for end in ends)
    expect(np.array_equal(one, other), "the global prototypes differ: draw from rng alone")


def losses_are_each_clients_own(name: str) -> None:
    """The losses of clients together are those of each alone, and nothing given is changed."""
    experiment = tiny(method={"name": name}, model=MLP)
    loop = RoundLoop([experiment], pictures(), CPU)
    state, _ = loop.advance(loop.start())
    batch, guide = _batch(experiment, loop, state)
    given = {**_tensors(batch), **batch.params, **{f"guide {k}": t for k, t in guide.items()}}
    before = {key: t.clone() for key, t in given.items()}
    together = experiment.method.losses(batch, guide)
    for key, t in before.items():
        expect(torch.equal(given[key], t), f"losses() changes {key} in place")
    for k in range(len(batch.y_KB)):
        one = slice(k, k + 1)
        alone = experiment.method.losses(_only(batch, one), rows_of(guide, one))
        for whole_K, own_K in zip(together, alone, strict=True):
            expect(whole_K.shape == (len(batch.y_KB),), f"a loss has the shape {whole_K.shape}")
            far = float((whole_K[one] - own_K).abs().max())
            expect(far <= 1e-9, f"client {k} has another loss with others beside it: by {far:.1e}")


def _batch(experiment: Experiment, loop: RoundLoop, state: LoopState) -> tuple[Batch, Guide]:
    """Return a batch of the first clients in float64, and what they know in the second round."""
    params = state.params[0]
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    guide = loop.guide(state, loop.cohorts[0], params)
    clients = len(next(iter(params.values())))
    model = loop.engines[0].program.model
    features_KBD = drawn(clients, 4, model.features())
    weight_KB = torch.ones(clients, 4, dtype=torch.float64)
    weight_KB[0, 3] = 0
    batch = Batch(
        logits_KBJ=drawn(clients, 4, len(pictures().classes)),
        c_KBD=features_KBD,
        p_KBV=experiment.pool(features_KBD),
        y_KB=torch.arange(4).expand(clients, 4),
        weight_KB=weight_KB,
        params={key: p.double() for key, p in params.items()},
        head=tuple(key for key in params if model.head(key)),
    )
    return batch, {key: t.double() if t.is_floating_point() else t for key, t in guide.items()}


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {key: value for key, value in vars(batch).items() if isinstance(value, Tensor)}


def _only(batch: Batch, rows: slice) -> Batch:
    parts = {key: value[rows] for key, value in _tensors(batch).items()}
    return Batch(**parts, params=rows_of(batch.params, rows), head=batch.head)


def stacked_runs_are_each_as_alone(name: str) -> None:
    """Runs of other seeds and weights, trained as one program, end as each does alone."""
    experiments = [
        tiny(seed=0, method={"name": name}, model=MLP, participation=0.7),
        tiny(seed=1, method=reweighted(name), model=MLP, participation=0.7),
    ]
    together, stacked = run(experiments, pictures(), 2)
    for r, experiment in enumerate(experiments):
        alone, rows = run([experiment], pictures(), 2)
        own = rows_of(together.params[0], slice(6 * r, 6 * r + 6))
        _close(own, alone.params[0])
        off = np.abs(together.globals_[r].values_JV - alone.globals_[0].values_JV).max()
        # Thousandths, or one step of the grid.
        limit = max(20, experiment.method.precision().step)
        expect(off <= limit, f"a global prototype is off by {off} of {limit}")
        for outcomes, (expected,) in zip(stacked, rows, strict=True):
            _alike(timeless(outcomes[r]), timeless(expected))


def _close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    try:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    except AssertionError as error:
        first = str(error).strip().splitlines()[0]
        raise Broken(f"models differ beside another run: {first}") from None


def _alike(mine: dict[str, Any], lone: dict[str, Any]) -> None:
    expect(math.isclose(mine["loss"], lone["loss"], rel_tol=1e-3), "the loss is another")
    far = abs(mine["accuracy_mean"] - lone["accuracy_mean"])
    expect(far <= 1.5, f"the accuracy is another by {far}")
    for key in SENT:
        expect(mine[key] == lone[key], f"{key} is {mine[key]} among runs, {lone[key]} alone")


def the_guide_keeps_its_shape(name: str) -> None:
    """What clients know has the same shape in every round, with a row for each client."""
    loop = RoundLoop([tiny(method={"name": name}, model=MLP)], pictures(), CPU)
    state = loop.start()
    shapes = []
    for _ in range(3):
        guide = loop.guide(state, loop.cohorts[0], state.params[0])
        shapes.append([(key, t.shape, t.dtype) for key, t in guide.items()])
        for key, t in guide.items():
            expect(len(t) == 6, f"the guide's {key} has {len(t)} rows for 6 clients")
        state, _ = loop.advance(state)
    expect(shapes[0] == shapes[1] == shapes[2], "the guide's shapes change from round to round")


def who_is_away_trains_nothing(name: str) -> None:
    """Clients that take no part in a round keep their models, and send nothing."""
    experiment = tiny(method={"name": name}, model=MLP, participation=0.5)
    loop = RoundLoop([experiment], pictures(), CPU)
    state = loop.start()
    head = loop.engines[0].program.model.head
    own = [key for key in state.params[0] if not experiment.method.shared(head(key))]
    for number in (1, 2):
        who = participants(experiment, number)
        away = [k for k in range(6) if k not in who]
        after, (outcome,) = loop.advance(state)
        for key in own:
            before = state.params[0][key]
            stays = torch.equal(after.params[0][key][away], before[away])
            expect(stays, f"{key} of a client that is away changes")
            moved = [not torch.equal(after.params[0][key][k], before[k]) for k in who]
            expect(all(moved), f"training leaves {key} as it was")
        rows = outcome.clients
        expect([k for k in range(6) if rows[k]["trained"]] == who, "another client trained")
        judged = [k for k in range(6) if rows[k]["verdict"]]
        expect(judged == (who if experiment.method.exchanges else []), "another client sent")
        state = after


METHOD_CHECKS = (
    losses_are_finite_and_alive,
    the_same_seed_gives_the_same_bytes,
    losses_are_each_clients_own,
    stacked_runs_are_each_as_alone,
    the_guide_keeps_its_shape,
    who_is_away_trains_nothing,
)
