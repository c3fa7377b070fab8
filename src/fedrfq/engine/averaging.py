"""The server of methods that exchange parameters: one, trusted. It averages in float64 and sends the averages back."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrfq.methods import Method
from fedrfq.models import Model
from fedrfq.models.stacked import Params


def shared(method: Method, model: Model, params: Params) -> Params:
    """What of the parameters is exchanged."""
    return {name: p for name, p in params.items() if method.shared(model.head(name))}


def same_start(method: Method, model: Model, params: Params, runs: int) -> tuple[Params, Params]:
    """The centres before the first round, and the clients' parameters: what is shared is the first client's for all."""
    by_run = {name: _rows(p, runs) for name, p in shared(method, model, params).items()}
    centres = {
        name: p[:, :1].expand(-1, method.centres, *p.shape[2:]).flatten(0, 1)
        for name, p in by_run.items()
    }
    return centres, {
        **params,
        **{name: p[:, :1].expand_as(p).flatten(0, 1) for name, p in by_run.items()},
    }


def exchange(
    method: Method, model: Model, centres: Params, params: Params, weight_RK: Tensor, first: bool
) -> tuple[Params, Params]:
    """The centres after a round, and the clients' parameters with what they get back. Weight 0: took no part."""
    runs = len(weight_RK)
    sent = {name: _rows(p, runs) for name, p in shared(method, model, params).items()}
    before = {name: _rows(p, runs) for name, p in centres.items()}
    assigned_RK = method.assign(before, sent, weight_RK, first)
    members_RMK = (
        torch.nn.functional.one_hot(assigned_RK, method.centres).mT * weight_RK[:, None].double()
    )
    total_RM = members_RMK.sum(2)
    after = {}
    received = dict(params)
    for name, p in sent.items():
        mean = torch.bmm(members_RMK, p.flatten(2).double()) / total_RM.clamp_min(1)[..., None]
        kept = torch.where(total_RM[..., None] > 0, mean.to(p.dtype), before[name].flatten(2))
        index = assigned_RK[..., None].expand(-1, -1, kept.shape[2])
        after[name] = kept.view_as(before[name]).flatten(0, 1)
        received[name] = kept.gather(1, index).view_as(params[name])
    return after, received


def _rows(p: Tensor, runs: int) -> Tensor:
    """A tensor's rows, run after run, as runs × rows of each."""
    return p.reshape(runs, -1, *p.shape[1:])
