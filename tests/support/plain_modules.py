"""Modules as a user would write them, with nothing of this package in them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainCNN(nn.Module):
    """The paper's CNN for 20×24 grey images, under the same names."""

    def __init__(self, num_classes: int = 3, drop: float = 0.75) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 6, 5)
        self.drop2d = nn.Dropout2d(drop)
        self.fc1 = nn.Linear(6 * 2 * 3, 50)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(drop)
        self.fc2 = nn.Linear(50, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(F.max_pool2d(self.conv1(x), 2))
        h = F.relu(F.max_pool2d(self.drop2d(self.conv2(h)), 2))
        return self.fc2(self.drop(self.act(self.fc1(h.flatten(1)))))


class Normed(nn.Module):
    """A small network with BatchNorm of both kinds, and a frozen and an unused layer."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Linear(4 * 3 * 4, 6)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.norm1 = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x)))
        return self.out(F.relu(self.norm1(self.frozen(h.flatten(1)))))


class Branching(nn.Module):
    """A network that looks at values, which vmap refuses: it is computed in a loop."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(2 * 5 * 6, 8)
        self.last = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        if h.sum() > 1e9:
            h = h * 0
        return self.last(torch.tanh(h))


class Noisy(nn.Module):
    """A network that draws numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        if self.training:
            h = h + torch.randn_like(h)
        return self.last(h)
