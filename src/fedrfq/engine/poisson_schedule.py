"""The schedule of DP-SGD: every sample is in a step or not, by a coin that nobody else sees.

What is gained by sampling is lost if others know who was drawn, so coins come from the operating
system; so does what happens to a sample, which then depends on no other sample. A round has as many
steps whatever a client holds: the number of its samples is a secret.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrfq.data.client_data import ClientData
from fedrfq.engine.program import Program
from fedrfq.engine.schedule import BatchSchedule, crops
from fedrfq.models.model import keep_factors
from fedrfq.privacy.rounded_gaussian import chances


def poisson_schedule(program: Program, data: ClientData, part: list[int]) -> BatchSchedule:
    """Return the schedule of the clients in `part`, drawn afresh."""
    index_KN = data.index_KN[part]
    device = index_KN.device
    steps = program.train.steps(program.epochs())
    real_KN = data.weight_KN()[part] > 0
    drawn_SKN = (_chances(steps, *index_KN.shape) < program.train.dp_rate).to(device) & real_KN
    # As wide as the largest batch: none is cut, which would not be Poisson sampling.
    batch = max(1, int(drawn_SKN.sum(2).max()))
    weight_SKB, place_SKB = drawn_SKN.float().sort(dim=2, descending=True, stable=True)
    weight_SKB = weight_SKB[..., :batch].contiguous()
    index_SKB = index_KN.expand(steps, -1, -1).gather(2, place_SKB[..., :batch])
    keep_SKBU = None
    if drops := program.model.drops():
        units = sum(count for _, count in drops)
        keep_SKBU = keep_factors(drops, _chances(*index_SKB.shape, units).float().to(device))
    crop_SKB3 = None
    if data.black_C is not None:
        crop_SKB3 = crops(_chances(*index_SKB.shape, 3).to(device))
    phase_SK2 = None
    if (phases := program.phases()) is not None:
        by_step = torch.tensor(phases, device=device).repeat_interleave(program.train.steps(1), 0)
        phase_SK2 = by_step[:, None].expand(-1, len(part), -1)
    return BatchSchedule(index_SKB, weight_SKB, keep_SKBU, crop_SKB3, phase_SK2)


def _chances(*shape: int) -> Tensor:
    return torch.from_numpy(chances(torch.Size(shape).numel())).view(shape)
