"""Any `nn.Module` as the clients' model, without rewriting it over stacked layers.

The experiment records where the module comes from and the hash of its code and structure, never the
code. The module itself is given by the user to every process that trains or predicts with it: a
source that only a file names is never imported.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from fedrfq.errors import UserError
from fedrfq.files.options import option
from fedrfq.models.model import Model
from fedrfq.models.module_program import ModuleProgram, drawing_nothing, seeded
from fedrfq.models.stacked import Layout, Params, TrainingStep
from fedrfq.plugins import source_text

# By what it is called, a parameter of the module's class that takes the number of classes.
_CLASSES = ("classes", "num_classes", "n_classes")
# How `--module` would name what stands in no file, or has no name in it.
UNNAMED = "FILE.py:NAME"


@dataclass(frozen=True)
class AnyModule(Model):
    """A module of the user's own; layers are named as in its `named_modules()`."""

    source: str = option("", "Where the module comes from", "such as nets.py:Net")
    sha256: str = option("", "Hash of its code and structure", "written when the module is given")
    head_layer: str = option(
        "",
        "Layer that decides, and whose input is the prototype; by default the last linear one",
        "a name of named_modules()",
    )
    feature_layer: str = option(
        "",
        "Layer whose output is the prototype, where the input of the head is not",
        "a name of named_modules()",
    )
    width: int = option(0, "Values of an unpooled prototype", "written when the module is given")

    # On CUDA, its steps are not recorded as graphs: nobody knows what it does.
    captured: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise UserError(
                'model.name = "module" stands for a module of your own: give it with '
                "--module nets.py:Net, or in Python with fedrfq.run(…, model=Net)"
            )

    def features(self) -> int:
        return self.width

    def head(self, name: str) -> bool:
        return name.startswith(f"{self.head_layer}.")

    def drops(self) -> tuple[tuple[float, int], ...]:
        return self.program().drops

    def start(self, shape: tuple[int, int, int], classes: int, generator: Generator) -> Params:
        seed = int(torch.randint(2**62, (1,), generator=generator))
        return self.program().start(seed)

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        return self.program().forward(params, x_KBCHW, step)

    def program(self) -> ModuleProgram:
        """Return the module as the user gave it to this process, or say what is missing."""
        if self in _GIVEN:
            return _GIVEN[self]
        raise UserError(
            f"the model is the module {self.source}, which is not imported because a file says so: "
            f"give it with --module {as_option(self.source)}, or in Python with model=…"
        )


def as_option(source: str) -> str:
    """Return a source as `--module` takes it: what was typed has to be put into a file."""
    place, _, name = source.rpartition(":")
    if place in ("", "__main__") or not name.replace(".", "").isidentifier():
        return UNNAMED
    return source


def give_again(model: AnyModule, module: Any, shape: tuple[int, int, int], classes: int) -> None:
    """Make the module of a recorded model known to this process; it must be the same."""
    layers = {"head_layer": model.head_layer, "feature_layer": model.feature_layer}
    if give(module, shape, classes, model.source, layers) != model:
        raise UserError(
            f"the module {model.source} is not the one that the run began with (sha256 "
            f"{model.sha256[:12]}…): restore its code, and its weights if they were given"
        )


# The modules that the user has given to this process.
_GIVEN: dict[AnyModule, ModuleProgram] = {}


def give(
    module: Any,
    shape: tuple[int, int, int],
    classes: int,
    source: str = "",
    settings: Mapping[str, Any] | None = None,
) -> AnyModule:
    """Make a module known to this process, and return the model that an experiment names it by.

    `module` is a class or a function that returns a fresh module, so that every client starts from
    its own random weights, or a module, so that all start from its weights. `settings` may name
    `head_layer` and `feature_layer`.
    """
    settings = settings or {}
    make = None
    whole = module
    if not isinstance(module, nn.Module):
        make = partial(module, **_arguments(module, classes))
        try:
            with drawing_nothing():
                whole = seeded(make, 0)
        except TypeError as error:
            raise UserError(
                f"model: {source_of(module)} cannot be made: {error}; give a function without "
                "arguments, such as lambda: Net(32)"
            ) from error
    if not isinstance(whole, nn.Module):
        raise UserError(f"model: expected an nn.Module or what returns one, found {whole!r:.80}")
    layers = (settings.get("head_layer", ""), settings.get("feature_layer", ""))
    program = ModuleProgram(whole, make, shape, classes, *layers)
    named = source or source_of(module)
    # What clients do not train comes from the module itself, also when it is given again.
    weights = set(whole.state_dict())
    if make is not None:
        weights -= set(program.names)
    digest = _sha256(whole, weights)
    model = AnyModule(named, digest, program.head_layer, program.feature_layer, program.width)
    _GIVEN[model] = program
    return model


def source_of(module: Any) -> str:
    """Return the name of a class, of a function, or of a module's class, as `--module` takes it."""
    named = type(module) if isinstance(module, nn.Module) else module
    name = getattr(named, "__qualname__", type(named).__qualname__)
    place = getattr(named, "__module__", "")
    script = Path(getattr(sys.modules.get("__main__"), "__file__", ""))
    if place == "__main__" and script.is_file():
        place = script.name
    return f"{place}:{name}"


def _arguments(make: Any, classes: int) -> dict[str, int]:
    """Return the number of classes, by the name under which the class or function takes it."""
    if isinstance(make, str):
        raise UserError(
            f"model: expected an nn.Module or what returns one, found {make!r:.80}; a model of "
            'this program is named in the settings: {"model": {"name": "cnn"}}'
        )
    if not callable(make):
        raise UserError(f"model: expected an nn.Module or what returns one, found {make!r:.80}")
    parameters = inspect.signature(make).parameters.values()
    known = {p.name: classes for p in parameters if p.name in _CLASSES}
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for p in parameters:
        if p.default is p.empty and p.kind not in optional and p.name not in known:
            raise UserError(
                f"model: {source_of(make)} needs the argument '{p.name}': give a function without "
                "arguments, such as lambda: Net(32)"
            )
    return known


def _sha256(module: nn.Module, weights: Container[str]) -> str:
    """Return the hash of the code of the user's classes, the structure, and these weights."""
    digest = hashlib.sha256()
    kinds = {type(layer) for layer in module.modules()}
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        if not kind.__module__.startswith("torch."):
            digest.update(_code(kind).encode())
    digest.update(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if name in weights:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _code(kind: type) -> str:
    """Return the source of a class; one that was typed into a bare interpreter has none."""
    try:
        return source_text.source_of(kind)
    except OSError:
        return kind.__qualname__
