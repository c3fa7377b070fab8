"""A trained client's model, for use: predictions on pictures, and files that other programs load."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedrfq.data.client_data import normalised
from fedrfq.data.image_decoding import pixels
from fedrfq.errors import UserError
from fedrfq.files import tensors
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.learning import metrics
from fedrfq.models import Model
from fedrfq.models.stacked import LAYOUTS, Params
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.prototypes.pooling import Pool
from fedrfq.runs.run_directory import RunDirectory

_LARGEST = 1 << 24  # pixels of a picture
FORMATS = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


class TrainedModule(nn.Module):
    """One client's model as an ordinary module: normalised images B×C×H×W in, logits and feature vectors C out."""

    def __init__(self, model: Model, params: Params) -> None:
        super().__init__()
        self.model = model
        self.keys = tuple(params)
        for name, p in params.items():
            self.register_buffer(name.replace(".", "/"), p)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        params = {name: getattr(self, name.replace(".", "/"))[None] for name in self.keys}
        c, logits = self.model.forward(LAYOUTS["cpu"], params, x[None], None)
        return logits[0], c[0]


@dataclass(frozen=True)
class DataFacts:
    """What a model needs to know of the data it was trained on."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def of(run: RunDirectory) -> DataFacts:
        known = run.environment().get("data")
        try:
            return DataFacts(*(tuple(known[key]) for key in ("classes", "shape", "mean", "std")))  # type: ignore[index]
        except (TypeError, KeyError):
            raise UserError(
                f"{run.path / 'environment.json'} does not describe the data: restore it"
            ) from None


@dataclass(frozen=True)
class ClientModel:
    """A client of a finished or running run, as its newest checkpoint has it; the data itself is not needed."""

    module: TrainedModule
    params: Params
    globals_: Globals
    pool: Pool
    facts: DataFacts

    @staticmethod
    def load(run: RunDirectory, client: int) -> ClientModel:
        experiment = run.experiment()
        if not 0 <= client < experiment.clients:
            raise UserError(f"client {client}: the run has clients 0 to {experiment.clients - 1}")
        state = run.last(torch.device("cpu"))
        first = 0
        for cohort, params in zip(experiment.models(), state.params, strict=True):
            if client < first + cohort.clients:
                own = {name: p[client - first].clone() for name, p in params.items()}
                module = TrainedModule(cohort.model, own).eval()
                return ClientModel(
                    module, own, state.globals_[0], experiment.pool, DataFacts.of(run)
                )
            first += cohort.clients
        raise AssertionError("the cohorts cover all clients")

    def images(self, files: Sequence[Path]) -> Tensor:
        """Pictures as the model takes them: in the data's colours and size, normalised."""
        pixels = np.stack([_picture(path, self.facts.shape) for path in files])
        return normalised(torch.from_numpy(pixels), self.facts.mean, self.facts.std)

    @torch.no_grad()
    def predict(self, files: Sequence[Path]) -> list[dict[str, object]]:
        """For each picture the own head's class with its probability, and the class of the nearest global prototype."""
        logits, c = self.module(self.images(files))
        chance, head = logits.softmax(-1).max(-1)
        present = torch.from_numpy(self.globals_.present_J)[None]
        distance = metrics.distances(self.pool(c)[None], torch.from_numpy(self.globals_.floats()))
        near = metrics.nearest(distance, present)[0].tolist()
        names = self.facts.classes
        return [
            {
                "file": str(path),
                "class": names[int(head[i])],
                "probability": round(float(chance[i]), 4),
                "nearest_prototype": names[near[i]] if near[i] >= 0 else None,
            }
            for i, path in enumerate(files)
        ]

    def export(self, path: Path, kind: str) -> Path:
        """The model in a file: safetensors (parameters by name), torchscript or onnx (the whole computation)."""
        if kind == "safetensors":
            tensors.save(
                path, self.params, {key: to_json(value) for key, value in vars(self.facts).items()}
            )
            return path
        example = torch.zeros(2, *self.facts.shape)
        write_atomically(
            path,
            _torchscript(self.module, example)
            if kind == "torchscript"
            else _onnx(self.module, example),
        )
        return path


def _torchscript(module: TrainedModule, example: Tensor) -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, example), file)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _onnx(module: TrainedModule, example: Tensor) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError(
            "ONNX export needs the packages onnx and onnxscript: pip install 'fedrfq[onnx]'"
        ) from None
    program = torch.onnx.export(
        module,
        (example,),
        input_names=["images"],
        output_names=["logits", "features"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return program.model_proto.SerializeToString()  # type: ignore[no-any-return]


def _picture(path: Path, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """C×H×W in the data's channels; a picture of another size is refused."""
    channels, height, width = shape
    found = pixels(path, _LARGEST, str(path))
    if found.shape[1:] != (height, width):
        raise UserError(
            f"{path} has {found.shape[2]}×{found.shape[1]} pixels, the model takes {width}×{height}: resize it"
        )
    if found.shape[0] > channels and (found.min(0) != found.max(0)).any():
        raise UserError(f"{path} is in colour, the model takes grey pictures: convert it")
    if found.shape[0] != channels:
        return np.repeat(found[:1], channels, axis=0)
    return found
