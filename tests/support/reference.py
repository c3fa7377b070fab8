"""The slow twin of the engine: client after client, stock PyTorch, nothing stacked or padded.

A client's order, dropout and crops come from `fedrfq.engine.counter_rng`, for that client alone;
everything else is written again, the way the papers' pseudocode reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrfq.engine import counter_rng
from fedrfq.engine.counter_rng import Purpose

State = dict[str, Tensor]
Globals = Mapping[int, Tensor]  # the global prototypes there are, by class


class CNN(nn.Module):
    """The paper's CNN; `keep` has the dropout factors of channels and of hidden units."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, channels: int = 20, hidden: int = 50
    ) -> None:
        super().__init__()
        height, width = ((((side - 4) // 2) - 4) // 2 for side in shape[1:])
        self.channels = channels
        self.conv1 = nn.Conv2d(shape[0], 10, 5)
        self.conv2 = nn.Conv2d(10, channels, 5)
        self.fc1 = nn.Linear(channels * height * width, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = F.relu(F.max_pool2d(self.conv1(x), 2))
        h = self.conv2(h)
        if keep is not None:
            h = h * keep[:, : self.channels, None, None]
        h = F.relu(F.max_pool2d(h, 2)).flatten(1)
        c = F.relu(self.fc1(h))
        return c, self.fc2(c if keep is None else c * keep[:, self.channels :])


class MLP(nn.Module):
    """A perceptron with two hidden layers."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, width: int = 200, hidden: int = 50
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape[0] * shape[1] * shape[2], width)
        self.fc2 = nn.Linear(width, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        c = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
        return c, self.fc3(c)


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        around = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        if inputs != outputs:
            self.downsample = nn.Sequential(*around)
        else:
            self.downsample = None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """torchvision's, with its key names."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, stem: int = 2, pool: int = 2
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 64, 7, stem, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, pool, 1)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        c = self.avgpool(h).flatten(1)
        return c, self.fc(c)


STOCK: dict[str, Callable[..., nn.Module]] = {"cnn": CNN, "mlp": MLP, "resnet18": ResNet18}


def windows(c: Tensor, stride: int) -> list[Tensor]:
    """The four values of each 2×2 window, so many columns apart, on a map of two rows."""
    top, bottom = c.chunk(2, -1)
    lefts = range(0, top.shape[-1] - 1, stride)
    return [
        torch.cat([top[..., left : left + 2], bottom[..., left : left + 2]], -1) for left in lefts
    ]


def softpool(c: Tensor) -> Tensor:
    """Eq. 7-8, windows one apart: each window's values weighted by their exponentials."""
    pooled = []
    for window in windows(c, 1):
        weights = torch.exp(window) / torch.exp(window).sum(-1, keepdim=True)
        pooled.append((weights * window).sum(-1))
    return torch.stack(pooled, -1)


def averages(c: Tensor) -> Tensor:
    """The mean of each window, none of which overlap."""
    return torch.stack([window.sum(-1) / 4 for window in windows(c, 2)], -1)


@dataclass(frozen=True)
class Seen:
    """What a loss may see.

    A batch's features and labels, the global prototypes, and the model's parameters now and at the
    start of the round.
    """

    c: Tensor
    y: list[int]
    known: Globals
    now: list[Tensor]
    start: list[Tensor]


def nothing(seen: Seen, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    zero = seen.c.new_zeros(())
    return zero, zero


def fedprox(seen: Seen, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """μ/2 ‖w − wᵗ‖²."""
    half = seen.c.new_zeros(())
    for now, start in zip(seen.now, seen.start, strict=True):
        half = half + ((now - start) ** 2).sum() / 2
    return options["mu"] * half, half


def fedproto(seen: Seen, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The mean over the batch of each sample's mean squared error.

    It is 0 for classes without a global prototype.
    """
    total = seen.c.new_zeros(())
    for vector, label in zip(seen.c, seen.y, strict=True):
        if label in seen.known:
            total = total + F.mse_loss(vector, seen.known[label])
    return options["lam"] * total / len(seen.y), total / len(seen.y)


def fedrfq(seen: Seen, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Eq. 10-11's distance, averaged over the batch or, as printed, in each class and summed."""
    p = softpool(seen.c)
    total = seen.c.new_zeros(())
    for vector, label in zip(p, seen.y, strict=True):
        if label in seen.known:
            if options["reduction"] == "samples":
                count = len(seen.y)
            else:
                count = seen.y.count(label)
            total = total + (vector - seen.known[label]).square().sum().sqrt() / count
    return options["lam"] * total, total


def lean(seen: Seen, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """λ times the distance to the own prototype, plus a separation.

    The separation is the weighted cross-entropy of the own prototype being the nearest of all.
    """
    p = averages(seen.c)
    near = seen.c.new_zeros(())
    apart = seen.c.new_zeros(())
    for vector, label in zip(p, seen.y, strict=True):
        if label not in seen.known:
            continue
        far = {}
        for j, prototype in seen.known.items():
            squares = (vector - prototype) ** 2
            if options["power"] == 2:
                far[j] = squares.sum() / len(squares)
            else:
                far[j] = squares.sum().sqrt()
        near = near + far[label] / len(seen.y)
        chances = {j: torch.exp(-distance / options["temperature"]) for j, distance in far.items()}
        apart = apart - torch.log(chances[label] / sum(chances.values())) / len(seen.y)
    return options["lam"] * near + options["separation"] * apart, near + options[
        "separation"
    ] * apart


# What a method adds to the cross-entropy, and what is reported of it.
LOSSES: dict[str, Callable[[Seen, Mapping[str, Any]], tuple[Tensor, Tensor]]] = {
    "local": nothing,
    "fedavg": nothing,
    "fedprox": fedprox,
    "fedper": nothing,
    "fedrep": nothing,
    "fesem": nothing,
    "fedproto": fedproto,
    "fedrfq": fedrfq,
    "fedrfq-lean": lean,
}


@dataclass(frozen=True)
class Settings:
    """How a client trains."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    rate: float = 0.0  # of dropout
    units: int = 0  # dropout factors of a sample
    black: Tensor | None = None  # the colour around cropped images


def batches(
    key: Tensor, count: int, settings: Settings, epochs: range
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    """Yield the samples of each batch of a client, their dropout factors and their crops."""
    units = settings.units
    for epoch in epochs:
        order = counter_rng.order(key[None], torch.tensor([count]), count, epoch)[0]
        drawn = counter_rng.uniform(key[None], Purpose.DROPOUT, count * units, epoch)
        drawn = drawn.view(count, units)
        keep = (drawn >= settings.rate).double() / (1 - settings.rate)
        crop = counter_rng.uniform(key[None], Purpose.AUGMENT, count * 3, epoch).view(count, 3)
        for slots in torch.split(torch.arange(count), settings.batch_size):
            factors = keep[slots] if settings.rate else None
            crops = None if settings.black is None else crop[slots]
            yield order[slots], factors, crops


def augmented(image: Tensor, crop: Tensor, black: Tensor) -> Tensor:
    """Return the image in a black frame of four pixels, cut at one of 9×9 places.

    One image in two is flipped.
    """
    top = int(crop[0] * 9)
    left = int(crop[1] * 9)
    flip = int(crop[2] * 2)
    frame = black[:, None, None].repeat(1, image.shape[1] + 8, image.shape[2] + 8)
    frame[:, 4:-4, 4:-4] = image
    cut = frame[:, top : top + image.shape[1], left : left + image.shape[2]]
    if flip:
        return cut.flip(2)
    return cut


def phases(
    model: nn.Module, method: str, options: Mapping[str, Any], epochs: int
) -> list[tuple[range, list[nn.Parameter]]]:
    """Return which passes over the data train which parameters.

    FedRep trains its decision layer first, then everything below it.
    """
    if method != "fedrep":
        return [(range(epochs), list(model.parameters()))]
    *body, head = model.children()
    first = options["head_epochs"]
    below = [p for layer in body for p in layer.parameters()]
    return [(range(first), list(head.parameters())), (range(first, first + epochs), below)]


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    key: Tensor,
    settings: Settings,
    method: str,
    options: Mapping[str, Any],
    known: Globals,
) -> Tensor:
    """Train one client for one round, in place, and return its mean losses.

    These are the total, the classification loss, and what is added to it.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    seen = 0
    start = [p.detach().clone() for p in model.parameters()]
    model.train()
    for epochs, parameters in phases(model, method, options, settings.epochs):
        optimiser = torch.optim.SGD(parameters, settings.lr, settings.momentum)
        for batch, keep, crop in batches(key, len(y), settings, epochs):
            images = x[batch]
            if crop is not None and settings.black is not None:
                pairs = zip(images, crop, strict=True)
                images = torch.stack([augmented(image, c, settings.black) for image, c in pairs])
            c, logits = model(images, keep)
            classification = F.cross_entropy(logits, y[batch])
            now = Seen(c, y[batch].tolist(), known, list(model.parameters()), start)
            added, reported = LOSSES[method](now, options)
            loss = classification + added
            model.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            sums += torch.stack([loss, classification, reported]).detach() * len(batch)
            seen += len(batch)
    return sums / seen


def state(model: nn.Module) -> State:
    """Return the model's tensors under the names that the engine gives them."""
    return {
        name: t
        for name, t in model.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
