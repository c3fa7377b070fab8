"""The server of methods that exchange parameters: one, trusted, which averages in float64.

Parameters of several runs are stacked, run after run: R runs, K clients and M centres in each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrfq.methods import Method
from fedrfq.models import Model
from fedrfq.models.stacked import Params


def shared(method: Method, model: Model, params: Params) -> Params:
    """Return the parameters that are exchanged."""
    return {name: p for name, p in params.items() if method.shared(model.head(name))}


def same_start(method: Method, model: Model, params: Params, runs: int) -> tuple[Params, Params]:
    """Return the centres before the first round, and the clients' parameters.

    What is shared is the same for all clients of a run: that of the first.
    """
    centres = {}
    started = dict(params)
    for name, p in shared(method, model, params).items():
        rows = _by_run(p, runs)
        first = rows[:, :1]
        centres[name] = first.expand(-1, method.centres, *rows.shape[2:]).flatten(0, 1)
        started[name] = first.expand_as(rows).flatten(0, 1)
    return centres, started


def exchange(
    method: Method, model: Model, centres: Params, params: Params, weight_RK: Tensor, *, first: bool
) -> tuple[Params, Params]:
    """Return the centres after a round, and the clients' parameters with what they get back.

    A client of weight 0 took no part in the round: it does not count, but gets its centre back too.
    """
    runs = len(weight_RK)
    sent = {name: _by_run(p, runs) for name, p in shared(method, model, params).items()}
    before = {name: _by_run(p, runs) for name, p in centres.items()}
    assigned_RK = method.assign(before, sent, weight_RK, first)
    assigned_RMK = torch.nn.functional.one_hot(assigned_RK, method.centres).mT
    weight_RMK = assigned_RMK * weight_RK[:, None].double()
    total_RM = weight_RMK.sum(2)
    after = {}
    received = dict(params)
    for name, p in sent.items():
        mean = torch.bmm(weight_RMK, p.flatten(2).double()) / total_RM.clamp_min(1)[..., None]
        # A centre without clients stays as it was.
        new = torch.where(total_RM[..., None] > 0, mean.to(p.dtype), before[name].flatten(2))
        index = assigned_RK[..., None].expand(-1, -1, new.shape[2])
        after[name] = new.view_as(before[name]).flatten(0, 1)
        received[name] = new.gather(1, index).view_as(params[name])
    return after, received


def _by_run(p: Tensor, runs: int) -> Tensor:
    """Return a tensor's rows, run after run, as runs × rows of each."""
    return p.reshape(runs, -1, *p.shape[1:])
