"""A trained client's model, for use: predictions on pictures, and files that other programs load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedrfq import data, tensors
from fedrfq.errors import UserError
from fedrfq.models import Model
from fedrfq.pooling import Pool
from fedrfq.prototypes import Globals
from fedrfq.records import RunDirectory
from fedrfq.shares import normalised
from fedrfq.stacked import LAYOUTS, Params

FORMATS = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


class Trained(nn.Module):
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
class Client:
    """A client of a finished or running run, as its newest checkpoint has it."""

    module: Trained
    params: Params
    globals_: Globals
    pool: Pool
    dataset: data.Dataset

    @staticmethod
    def load(run: RunDirectory, client: int) -> Client:
        experiment = run.experiment()
        if not 0 <= client < experiment.clients:
            raise UserError(f"client {client}: the run has clients 0 to {experiment.clients - 1}")
        state, first = run.last(torch.device("cpu")), 0
        for cohort, params in zip(experiment.models(), state.params, strict=True):
            if client < first + cohort.clients:
                own = {name: p[client - first].clone() for name, p in params.items()}
                module = Trained(cohort.model, own).eval()
                dataset = data.load(experiment.data.name)
                return Client(module, own, state.globals_[0], experiment.pool, dataset)
            first += cohort.clients
        raise AssertionError("the cohorts cover all clients")

    def images(self, files: Sequence[Path]) -> Tensor:
        """Pictures as the model takes them: in the data's colours and size, normalised."""
        pixels = np.stack([_picture(path, self.dataset.shape) for path in files])
        return normalised(torch.from_numpy(pixels), self.dataset)

    @torch.no_grad()
    def predict(self, files: Sequence[Path]) -> list[dict[str, object]]:
        """For each picture the own head's class with its probability, and the class of the nearest global prototype."""
        logits, c = self.module(self.images(files))
        chance, head = logits.softmax(-1).max(-1)
        present = torch.from_numpy(self.globals_.present_J)
        distance = torch.cdist(self.pool(c), torch.from_numpy(self.globals_.floats()))
        near = distance.masked_fill(~present, float("inf")).argmin(-1)
        names = self.dataset.classes
        return [
            {
                "file": str(path),
                "class": names[int(head[i])],
                "probability": round(float(chance[i]), 4),
                "nearest_prototype": names[int(near[i])] if bool(present.any()) else None,
            }
            for i, path in enumerate(files)
        ]

    def export(self, path: Path, kind: str) -> Path:
        """The model in a file: safetensors (parameters by name), torchscript or onnx (the whole computation)."""
        if kind == "safetensors":
            tensors.save(path, self.params)
            return path
        example = torch.zeros(2, *self.dataset.shape)
        try:
            if kind == "torchscript":
                torch.jit.trace(self.module, example).save(str(path))  # type: ignore[no-untyped-call]
            else:
                _export_onnx(self.module, example, path)
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot write {path}: {error}") from error
        return path


def _export_onnx(module: Trained, example: Tensor, path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("ONNX export needs the packages onnx and onnxscript: pip install 'fedrfq[onnx]'") from None
    torch.onnx.export(
        module,
        (example,),
        str(path),
        input_names=["images"],
        output_names=["logits", "features"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
        dynamo=True,
        external_data=False,
    )


def _picture(path: Path, shape: tuple[int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    from PIL import Image, UnidentifiedImageError

    channels, height, width = shape
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L" if channels == 1 else "RGB"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as a picture: {error}") from error
    if pixels.shape[:2] != (height, width):
        raise UserError(f"{path} has {pixels.shape[1]}×{pixels.shape[0]} pixels, the model takes {width}×{height}: resize it")
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
