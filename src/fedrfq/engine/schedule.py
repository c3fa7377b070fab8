"""A round's schedule: which samples each client trains on in each step, and what happens to them.

S counts the steps of a round, K clients, B the samples of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.data.client_data import ClientData
from fedrfq.engine import counter_rng
from fedrfq.engine.counter_rng import Purpose
from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.models.model import keep_factors

# Pixels of padding for random crops.
_CROP = 4


@dataclass(frozen=True)
class ScheduledStep:
    """One step of some clients: a row of each tensor of a schedule."""

    index_KB: Tensor
    weight_KB: Tensor
    keep_KBU: Tensor | None
    crop_KB3: Tensor | None
    phase_K2: Tensor | None


@dataclass(frozen=True)
class BatchSchedule:
    """For every step and client of a round: which samples, and what happens to them."""

    index_SKB: Tensor
    weight_SKB: Tensor  # 1 for a real sample, 0 for padding
    keep_SKBU: Tensor | None  # None for a model without dropout
    crop_SKB3: Tensor | None  # None where images are not augmented
    phase_SK2: Tensor | None  # None where everything is trained in every pass

    def tensors(self) -> list[Tensor]:
        """Return those there are, in the order of the fields."""
        optional = (self.keep_SKBU, self.crop_SKB3, self.phase_SK2)
        return [self.index_SKB, self.weight_SKB, *(t for t in optional if t is not None)]

    def to(self, device: torch.device) -> BatchSchedule:
        """Return the schedule on a device."""
        named = {name: t.to(device) for name, t in vars(self).items() if t is not None}
        return replace(self, **named)

    def step(self, number_1: Tensor, width: int) -> ScheduledStep:
        """Return the step of that number, a tensor of one element, of the first `width` clients."""

        def select(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, number_1)[0, :width]

        def select_any(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else select(tensor)

        return ScheduledStep(
            index_KB=select(self.index_SKB),
            weight_KB=select(self.weight_SKB),
            keep_KBU=select_any(self.keep_SKBU),
            crop_KB3=select_any(self.crop_SKB3),
            phase_K2=select_any(self.phase_SK2),
        )


def schedule(program: Program, data: ClientData, part: list[int], keys_K: Tensor) -> BatchSchedule:
    """Return the schedule of the clients in `part`.

    Each client's epochs follow one after the other, each in its own order. There are as many steps
    as the longest client of all needs, whoever takes part, so that the shape is the same every
    round. What a sample meets (its turn, dropout, crop) depends on its client's key, its epoch and
    its slot there alone.
    """
    train = program.train
    epochs = program.epochs()
    device = keys_K.device
    batch = min(train.batch_size, max(data.counts))
    longest = -(-max(data.counts) // batch)
    slots = longest * batch
    counts_K = torch.tensor([data.counts[k] for k in part], device=device)
    steps_K = _steps(counts_K, train)
    client_K = torch.arange(len(part), device=device)
    step_S1 = torch.arange(epochs * longest, device=device)[:, None]
    # A client that is done stays in its last epoch, with samples of weight 0.
    epoch_SK = (step_S1 // steps_K).clamp_max(epochs - 1)
    inner_SK = step_S1 % steps_K
    slot_SKB = inner_SK[..., None] * batch + torch.arange(batch, device=device)
    real_SKB = (slot_SKB < counts_K[:, None]) & (step_S1 < epochs * steps_K)[..., None]

    def by_step(values: int, draw: Callable[[int], Tensor]) -> Tensor:
        """Lay out what `draw` gives for each epoch, K × (slots · values), as S × K × B × values."""
        by_epoch = torch.stack([draw(epoch) for epoch in range(epochs)])
        rows = by_epoch.view(epochs, len(part), longest, batch, values)
        return rows[epoch_SK, client_K, inner_SK]

    def chances(purpose: Purpose, values: int) -> Tensor:
        return by_step(
            values, lambda epoch: counter_rng.uniform(keys_K, purpose, slots * values, epoch)
        )

    order_SKB1 = by_step(1, lambda epoch: counter_rng.order(keys_K, counts_K, slots, epoch))
    order_SKB = order_SKB1[..., 0].where(real_SKB, 0)
    keep_SKBU = None
    drops = program.model.drops()
    if drops:
        units = sum(count for _, count in drops)
        keep_SKBU = keep_factors(drops, chances(Purpose.DROPOUT, units))
    crop_SKB3 = None
    if data.black_C is not None:
        crop_SKB3 = crops(chances(Purpose.AUGMENT, 3))
    phase_SK2 = None
    phases = program.phases()
    if phases is not None:
        phase_SK2 = torch.tensor(phases, device=device)[epoch_SK]
    return BatchSchedule(
        index_SKB=data.index_KN[part][client_K[:, None], order_SKB],
        weight_SKB=real_SKB.float(),
        keep_SKBU=keep_SKBU,
        crop_SKB3=crop_SKB3,
        phase_SK2=phase_SK2,
    )


def crops(chances_SKB3: Tensor) -> Tensor:
    """Return rows down, columns to the right, and flipped or not, from numbers in [0, 1)."""
    choices = torch.tensor([2 * _CROP + 1, 2 * _CROP + 1, 2], device=chances_SKB3.device)
    return (chances_SKB3 * choices).long()


def widths(program: Program, data: ClientData, part: list[int]) -> list[int]:
    """Return how many of the clients in `part`, longest first, still train at each step."""
    if program.train.private:
        return program.train.steps(program.epochs()) * [len(part)]
    counts = torch.tensor([data.counts[k] for k in part])
    ends = program.epochs() * _steps(counts, program.train)
    return (ends[None, :] > torch.arange(int(ends[0]))[:, None]).sum(1).tolist()


def _steps(counts: Tensor, train: TrainingOptions) -> Tensor:
    """Return the steps of one pass over so many samples."""
    return (counts + train.batch_size - 1) // train.batch_size


def augmented(x_KBCHW: Tensor, crop_KB3: Tensor, black_C: Tensor) -> Tensor:
    """Return each image padded by 4 black pixels, shifted as drawn, and flipped where drawn.

    The shift is 0 to 8 pixels down and to the right.
    """
    height, width = x_KBCHW.shape[-2:]
    black_C11 = black_C[:, None, None]
    # Padding is 0, so black is made 0 first and added back at the end.
    padded = F.pad(x_KBCHW - black_C11, (_CROP,) * 4)
    channels = padded.shape[2]
    rows = torch.arange(height, device=x_KBCHW.device) + crop_KB3[..., 0, None]
    forward = torch.arange(width, device=x_KBCHW.device)
    flipped = crop_KB3[..., 2, None] == 1
    cols = torch.where(flipped, width - 1 - forward, forward) + crop_KB3[..., 1, None]
    by_rows = rows[:, :, None, :, None].expand(-1, -1, channels, -1, padded.shape[4])
    by_cols = cols[:, :, None, None, :].expand(-1, -1, channels, height, -1)
    return padded.gather(3, by_rows).gather(4, by_cols) + black_C11
