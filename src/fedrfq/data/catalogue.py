"""The datasets known by name. To add one, write a file like mnist.py and add a line here."""

from __future__ import annotations

from fedrfq.data.cifar10 import CIFAR10
from fedrfq.data.femnist import FEMNIST
from fedrfq.data.mnist import MNIST
from fedrfq.data.mnist5k import MNIST5K
from fedrfq.data.source import Source

DATASETS: dict[str, Source] = {
    "mnist5k": MNIST5K,
    "mnist": MNIST,
    "cifar10": CIFAR10,
    "femnist": FEMNIST,
}
