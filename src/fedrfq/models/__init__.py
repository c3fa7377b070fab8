"""The models by name. A new model is a file beside these and a line here."""

from fedrfq.models.cnn import CNN
from fedrfq.models.mlp import MLP
from fedrfq.models.model import Model
from fedrfq.models.resnet18 import ResNet18

MODELS: dict[str, type[Model]] = {"cnn": CNN, "mlp": MLP, "resnet18": ResNet18}

__all__ = ["MODELS", "Model"]
