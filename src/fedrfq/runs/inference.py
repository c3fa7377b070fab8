"""Use a trained client's model: predict images, and export it for other programs."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedrfq.data.client_data import normalised
from fedrfq.data.given_arrays import images_of
from fedrfq.data.image_decoding import pixels
from fedrfq.data.image_form import AS_FOUND, ImageForm, Shape, luma, scaled
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files import tensors
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import from_json, to_json
from fedrfq.learning import metrics
from fedrfq.learning.draws import targets
from fedrfq.models import Model
from fedrfq.models.any_module import AnyModule
from fedrfq.models.model import keep_factors
from fedrfq.models.stacked import LAYOUTS, Params, TrainingStep, trained
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.prototypes.pooling import Pool
from fedrfq.runs.public_answers import PublicAnswers
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.snapshot import load_shares

_MAX_PIXELS = 1 << 24
_FACTS = ("classes", "shape", "mean", "std")
FORMATS = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


class TrainedModule(nn.Module):
    """One client's model as an ordinary module.

    It takes normalised images B×C×H×W and returns logits and feature vectors. Its parameters can be
    trained further: in training mode it drops units out by PyTorch's own generator.
    """

    def __init__(self, model: Model, params: Params) -> None:
        super().__init__()
        self.model = model
        self.keys = tuple(params)
        # The name of a parameter or buffer must not have a dot.
        for name, p in params.items():
            if trained(name):
                self.register_parameter(name.replace(".", "/"), nn.Parameter(p))
            else:
                self.register_buffer(name.replace(".", "/"), p)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the features of a batch."""
        # The model computes many clients at once; this is a stack of one.
        params = {name: getattr(self, name.replace(".", "/"))[None] for name in self.keys}
        step = None
        if self.training:
            step = self._step(x)
        c, logits = self.model.forward(LAYOUTS[x.device.type], params, x[None], step)
        return logits[0], c[0]

    def _step(self, x: Tensor) -> TrainingStep:
        """Return a step in which all samples count, with random dropout."""
        drops = self.model.drops()
        keep_1BU = None
        if drops:
            units = sum(count for _, count in drops)
            chances = torch.rand(1, len(x), units, device=x.device)
            keep_1BU = keep_factors(drops, chances).to(x.dtype)
        return TrainingStep(torch.ones(1, len(x), device=x.device, dtype=x.dtype), keep_1BU)


@dataclass(frozen=True)
class DataFacts:
    """What a model needs to know about the data it was trained on."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # Of numbers that are no pixels it is float32.
    dtype: str = "uint8"

    @staticmethod
    def of(run: RunDirectory) -> DataFacts:
        """Return the facts that the run recorded when it began."""
        data = run.environment()["data"]
        try:
            classes, shape, mean, std = (tuple(data[key]) for key in _FACTS)
            facts = DataFacts(classes, shape, mean, std, data.get("dtype", "uint8"))
        except (TypeError, KeyError):
            facts = _NO_FACTS
        if not facts.are_sound():
            raise UserError(
                f"{run.path / 'environment.json'} does not describe the data: restore the file"
            )
        return facts

    def are_sound(self) -> bool:
        """Return whether these can be facts at all; they come from a file that may be hostile."""
        moments = (*self.mean, *self.std)
        return (
            len(self.classes) > 0
            and all(isinstance(name, str) for name in self.classes)
            and all(type(size) is int and 0 < size < 1 << 16 for size in self.shape)
            and len(self.shape) == 3
            and len(self.mean) == len(self.std) == self.shape[0]
            and all(type(value) in (int, float) and math.isfinite(value) for value in moments)
            and self.dtype in ("uint8", "float32")
        )


_NO_FACTS = DataFacts((), (0, 0, 0), (), ())


def _kinds(model: Model, facts: DataFacts) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shape and type of each of a model's parameters; none if it takes no such data."""
    if isinstance(model, AnyModule):
        # The user gave it to this process: no file decides its size.
        return {name: (p.shape, p.dtype) for name, p in model.program().start(0).items()}
    try:
        # On no device: what a hostile file states takes no memory.
        with torch.device("meta"):
            params = model.start(facts.shape, len(facts.classes), torch.Generator())
    except (UserError, ValueError, TypeError, RuntimeError):
        return {}
    return {name: (p.shape, p.dtype) for name, p in params.items()}


@dataclass(frozen=True)
class ClientModel:
    """A client's model as the newest checkpoint of its run has it; the data are not needed.

    `public` is what the client knows on the public map; None without a map, or before a run ended.
    `held` are the classes of which the client has samples; None where that is not recorded.
    `form` says how images are converted, as those were that the model was trained on.
    """

    module: TrainedModule
    params: Params
    globals_: Globals
    pool: Pool
    facts: DataFacts
    public: PublicAnswers | None = None
    held: frozenset[int] | None = None
    form: ImageForm = AS_FOUND

    @staticmethod
    def load(run: RunDirectory, client: int) -> ClientModel:
        """Return client number `client` of a finished or running run."""
        experiment = run.experiment()
        if not 0 <= client < experiment.clients:
            raise UserError(
                f"client {client} does not exist: the run has clients 0 to {experiment.clients - 1}"
            )
        state = run.last(torch.device("cpu"))
        facts = DataFacts.of(run)
        _check_globals(run, experiment, facts, state.globals_[0])
        first = 0
        for cohort, params in zip(experiment.models(), state.params, strict=True):
            if client < first + cohort.clients:
                kinds = {name: (p.shape[1:], p.dtype) for name, p in params.items()}
                rows = {len(p) for p in params.values()}
                if kinds != _kinds(cohort.model, facts) or rows != {cohort.clients}:
                    raise _other_model(run)
                own = {name: p[client - first].clone() for name, p in params.items()}
                module = TrainedModule(cohort.model, own).eval()
                prototypes = targets(experiment, state.round, state.globals_[0])
                public = PublicAnswers.load(run.path, client, experiment.public, len(facts.classes))
                held = _held(run.path, client)
                form = experiment.data.form()
                return ClientModel(
                    module, own, prototypes, experiment.pool, facts, public, held, form
                )
            first += cohort.clients
        raise AssertionError("the cohorts cover all clients")

    @staticmethod
    def of_party(
        folder: Path, experiment: Experiment, client: int, form: ImageForm = AS_FOUND
    ) -> ClientModel:
        """Return the model in the model folder of a network client.

        `client` is its number in the experiment, and `form` that of the data contract.
        Prototypes that were exchanged are not there.
        """
        path = folder / "model.safetensors"
        params, about = tensors.load(path)
        model = experiment.place(client)[1]
        try:
            classes, shape, mean, std = (tuple(from_json(about[key])) for key in _FACTS)
            facts = DataFacts(classes, shape, mean, std)
        except (KeyError, ValueError, TypeError):
            facts = _NO_FACTS
        found = {name: (p.shape, p.dtype) for name, p in params.items()}
        if not facts.are_sound() or found != _kinds(model, facts):
            raise UserError(f"{path} is not a model of this federation's experiment: restore it")
        size = len(facts.classes)
        prototypes = Globals.none(size, experiment.prototype_size())
        if not experiment.method.exchanges:
            # Codes are known without any exchange; other targets are made of what came back.
            prototypes = targets(experiment, 0, prototypes)
        public = PublicAnswers.load(folder, 0, experiment.public, size)
        module = TrainedModule(model, params).eval()
        return ClientModel(module, params, prototypes, experiment.pool, facts, public, form=form)

    def pixels(self, images: Any) -> Tensor:
        """Return images in the data's colours and size, of values 0 to 255."""
        if not _are_files(images):
            return self._given(images)
        shape = self.facts.shape
        return torch.from_numpy(np.stack([_image(Path(path), shape, self.form) for path in images]))

    def _given(self, images: Any) -> Tensor:
        """Return images that were given as an array or a tensor."""
        (pixels_NCHW,) = images_of([images], "images", as_numbers=self.facts.dtype != "uint8")
        if pixels_NCHW.shape[1:] != self.facts.shape:
            raise UserError(
                f"images: expected channels, height and width {self.facts.shape}, as the model "
                f"takes them, found {pixels_NCHW.shape[1:]}; give N×C×H×W, also of one image"
            )
        return torch.from_numpy(pixels_NCHW)

    def images(self, images: Any) -> Tensor:
        """Return images as the model takes them: in the data's colours and size, normalised."""
        return normalised(self.pixels(images), self.facts.mean, self.facts.std)

    @torch.no_grad()
    def predict(self, images: Any, threshold: float | None = None) -> list[dict[str, object]]:
        """Return two predictions for each image: the client's, and the nearest prototype's.

        The client's class comes with its probability; it is its own head's or, with a public map,
        that of both together, with who decided (see `PublicAnswers.answers`). The prototypes are
        the global ones. `seen` and `nearest_prototype_seen` say whether the client has samples of
        that class; None where it is not known.
        """
        if threshold is not None and self.public is None:
            raise UserError(
                "a threshold needs what the client knows on a public map, and there is nothing:"
                " leave --threshold out, or run an experiment with public.name to its end"
            )
        pixels = self.pixels(images)
        logits, c = self.module(normalised(pixels, self.facts.mean, self.facts.std))
        probabilities, head_classes = logits.softmax(-1).max(-1)
        present = torch.from_numpy(self.globals_.present_J)[None]
        distance = metrics.distances(self.pool(c)[None], torch.from_numpy(self.globals_.floats()))
        nearest_classes = metrics.nearest(distance, present)[0].tolist()
        names = self.facts.classes
        predictions: list[dict[str, object]] = []
        for i, place in enumerate(_places(images)):
            # -1 where there is no global prototype yet.
            nearest = names[nearest_classes[i]] if nearest_classes[i] >= 0 else None
            predictions.append(
                {
                    **place,
                    "class": names[int(head_classes[i])],
                    "probability": round(float(probabilities[i]), 4),
                    "seen": self._saw(int(head_classes[i])),
                    "nearest_prototype": nearest,
                    "nearest_prototype_seen": self._saw(nearest_classes[i]),
                }
            )
        if self.public is not None:
            found = self.public.answers(pixels, logits, names, threshold)
            for row, answer in zip(predictions, found, strict=True):
                row.update(answer)
        return predictions

    def _saw(self, label: int) -> bool | None:
        """Return whether the client has samples of a class; None where that is not known."""
        if self.held is None or label < 0:
            return None
        return label in self.held

    def export(self, path: Path, kind: str) -> Path:
        """Write the model to a file and return its path.

        safetensors holds the parameters by name, torchscript and onnx the whole computation.
        """
        if kind == "safetensors":
            facts = {key: to_json(value) for key, value in vars(self.facts).items()}
            tensors.save(path, self.params, facts)
            return path
        # Two images: a batch of one would be taken for a constant.
        example = torch.zeros(2, *self.facts.shape)
        if isinstance(self.module.model, AnyModule):
            raise UserError(
                f"--format {kind} is for models of this program; of a module of your own take the "
                "parameters (--format safetensors), or export run.models[N] in Python"
            )
        if kind == "torchscript":
            content = _torchscript(self.module, example)
        else:
            content = _onnx(self.module, example)
        write_atomically(path, content)
        return path


def _held(folder: Path, client: int) -> frozenset[int] | None:
    """Return the classes that a client of the run holds, as recorded."""
    recorded = load_shares(folder)
    if recorded is None:
        return None
    return frozenset(share.label for share in recorded if share.client == client and share.train)


def _other_model(run: RunDirectory) -> UserError:
    return UserError(
        f"{run.path}: the newest checkpoint is not of the experiment's models and data: restore it"
    )


def _check_globals(
    run: RunDirectory, experiment: Experiment, facts: DataFacts, globals_: Globals
) -> None:
    """Check that a checkpoint's global prototypes are of as many classes and values as they are."""
    shape = (len(facts.classes), experiment.prototype_size())
    is_whole = globals_.values_JV.dtype == np.int64 and globals_.present_J.shape == shape[:1]
    if not is_whole or globals_.values_JV.shape != shape:
        raise _other_model(run)


def _torchscript(module: TrainedModule, example: Tensor) -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, example), file)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _onnx(module: TrainedModule, example: Tensor) -> bytes:
    try:
        # torch imports them late and fails without saying what to install.
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError(
            "ONNX export needs the packages onnx and onnxscript: pip install 'fedrfq[onnx]'"
        ) from None
    with _quiet():
        program = torch.onnx.export(
            module,
            (example,),
            input_names=["images"],
            output_names=["logits", "features"],
            # Only the batch size may vary.
            dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto.SerializeToString()  # type: ignore[no-any-return]


def _are_files(images: Any) -> bool:
    """Return whether images are given by their paths, and not by their pixels."""
    return isinstance(images, list | tuple) and all(isinstance(one, str | Path) for one in images)


def _places(images: Any) -> list[dict[str, object]]:
    """Return how each image is named in the table of predictions."""
    if _are_files(images):
        return [{"file": str(path)} for path in images]
    return [{"image": i} for i in range(len(images))]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the exporter says about itself: nothing of it is about the user's model."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _image(path: Path, shape: Shape, form: ImageForm) -> NDArray[np.uint8]:
    """Return C×H×W in the data's channels; another size is refused unless the form resizes it."""
    channels, height, width = shape
    image = pixels(path, _MAX_PIXELS, str(path), form)
    if form.resize:
        image = scaled(image, (height, width))
    if form.recolour and len(image) > channels:
        image = luma(image)
    found_channels, found_height, found_width = image.shape
    if (found_height, found_width) != (height, width):
        raise UserError(
            f"{path}: expected {width}×{height} pixels, which is what the model takes, "
            f"found {found_width}×{found_height}; resize the image"
        )
    # A colour file whose channels are equal is a grey image all the same.
    if found_channels > channels and (image.min(0) != image.max(0)).any():
        raise UserError(
            f"{path}: expected a grey image, which is what the model takes, "
            "found one in colour; convert it"
        )
    if found_channels != channels:
        return np.repeat(image[:1], channels, axis=0)
    return image
