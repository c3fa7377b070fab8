"""One module's computation for many clients: by `vmap` over stacked parameters, or in a loop.

What must be known of a module is learned by running it on two images: which layer decides, how long
the feature vector is, which parameters are trained, what is dropped out, whether `vmap` can run it.
Parameters that need no gradient, or that the logits do not depend on, and buffers other than
BatchNorm's running moments are the same for all clients and never change.
"""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fedrfq.errors import UserError
from fedrfq.models.module_training import ModuleStep
from fedrfq.models.stacked import BUFFERS, Params, TrainingStep

Make = Callable[[], nn.Module]
# Layers that a message names.
_SHOWN = 12


class ModuleProgram:
    """A module of the user's own, as a function of parameters, images and a training step.

    `make` returns a fresh module; without it all clients start from the weights of `module`.
    """

    def __init__(
        self,
        module: nn.Module,
        make: Make | None,
        shape: tuple[int, int, int],
        classes: int,
        head_layer: str,
        feature_layer: str,
    ) -> None:
        _check_layers(module)
        _check_parameters(module)
        self.module = module
        self.make = make
        self._example = torch.zeros(2, *shape)
        self._threads = threading.local()
        self.feature_layer = _known(module, feature_layer)
        with drawing_nothing():
            self.head_layer = _known(module, head_layer) or self._last_linear()
            self.names = self._trained_names()
            self.width = self._feature_width(classes)
            self.drops = self._drops()
        self._check_buffers()
        self._check_samples_apart()
        self.stacked = self._can_be_stacked()

    def start(self, seed: int) -> Params:
        """Return a client's first parameters: of a module made with this seed, or those given."""
        module = self.module
        if self.make is not None:
            module = seeded(self.make, seed)
        return self._params(module)

    def rebuilt(self, params: Params) -> nn.Module:
        """Return the user's own module with a client's parameters."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(params, strict=False)
        return module.eval()

    def forward(
        self, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        """Return the features and the logits of all clients' samples."""
        if self.stacked and len(x_KBCHW) > 1:
            return self._at_once(params, x_KBCHW, step)
        return self._one_by_one(params, x_KBCHW, step)

    def _at_once(
        self, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        """Compute all clients in one call; all must have the same shapes."""
        weight_KB, keep_KBU = _factors(step)
        rows = (0, 0, None if weight_KB is None else 0, None if keep_KBU is None else 0)
        features, logits = vmap(self._one, in_dims=rows)(params, x_KBCHW, weight_KB, keep_KBU)
        return features, logits

    def _one_by_one(
        self, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        """Compute client after client."""
        weight_KB, keep_KBU = _factors(step)
        found = []
        for k, x in enumerate(x_KBCHW):
            own = {name: p[k] for name, p in params.items()}
            weight = None if weight_KB is None else weight_KB[k]
            keep = None if keep_KBU is None else keep_KBU[k]
            found.append(self._one(own, x, weight, keep))
        features, logits = zip(*found, strict=True)
        return torch.stack(features), torch.stack(logits)

    def _one(
        self, params: Mapping[str, Tensor], x: Tensor, weight_B: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute one client's samples; with weights it is a step of training."""
        if weight_B is None:
            return self._call(params, x, training=False)
        with ModuleStep(weight_B, keep):
            return self._call(params, x, training=True)

    def _call(
        self, params: Mapping[str, Tensor], x: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        module, seen = self._own(x)
        module.train(training)
        # Rows of numbers are stored as images of one pixel.
        if x.shape[-2:] == (1, 1):
            x = x.flatten(-3)
        logits = functional_call(module, dict(params), (x,))
        if not isinstance(logits, Tensor):
            raise UserError(
                f"the module returns a {type(logits).__name__}: expected the logits as one tensor"
            )
        return seen.pop("features"), logits

    def _own(self, x: Tensor) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return this thread's copy of the module, where x is, and where it leaves the features.

        `functional_call` changes the module while it runs, so no two threads may share one.
        """
        place = (x.device, x.dtype)
        if getattr(self._threads, "place", None) != place:
            self._threads.own = self._copy(x)
            self._threads.place = place
        own: tuple[nn.Module, dict[str, Tensor]] = self._threads.own
        return own

    def _copy(self, x: Tensor) -> tuple[nn.Module, dict[str, Tensor]]:
        module = copy.deepcopy(self.module).to(x.device, x.dtype)
        seen: dict[str, Tensor] = {}
        layers = dict(module.named_modules())
        for layer in layers.values():
            if isinstance(layer, _BatchNorm):
                # A counter that only BatchNorm without a momentum would need.
                layer.num_batches_tracked = None
        if self.feature_layer:
            layers[self.feature_layer].register_forward_hook(
                lambda layer, given, out: seen.update(features=out)
            )
        else:
            layers[self.head_layer].register_forward_pre_hook(
                lambda layer, given: seen.update(features=given[0])
            )
        return module, seen

    def _params(self, module: nn.Module) -> Params:
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: state[name].detach().clone() for name in self.names}

    def _last_linear(self) -> str:
        """Return the name of the linear layer that is called last."""
        called: list[str] = []
        module = copy.deepcopy(self.module).eval()
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(_noting(called, name))
        with torch.no_grad(), _explained():
            x = self._example
            module(x.flatten(-3) if x.shape[-2:] == (1, 1) else x)
        if not called or not called[-1]:
            raise UserError(
                "the module has no nn.Linear inside it, so it is not clear which layer decides: "
                f"set model.head_layer to one of {_names(module)}"
            )
        return called[-1]

    def _trained_names(self) -> tuple[str, ...]:
        """Return the names of what clients train and, of BatchNorm, remember."""
        wanted = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        leaves = {name: p.detach().clone().requires_grad_() for name, p in wanted.items()}
        with _explained():
            _, logits = self._one(leaves, self._example, None, None)
            if not logits.requires_grad:
                raise UserError(
                    "the module's output depends on no parameter that requires a gradient: there "
                    "is nothing to train"
                )
            grads = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
        used = [name for name, grad in zip(leaves, grads, strict=True) if grad is not None]
        moments = [name for name, _ in self.module.named_buffers() if name.endswith(BUFFERS)]
        return (*used, *moments)

    def _feature_width(self, classes: int) -> int:
        with torch.no_grad():
            features, logits = self._one(self._params(self.module), self._example, None, None)
        if logits.shape != (2, classes):
            raise UserError(
                f"the module returns logits of shape {tuple(logits.shape)} for 2 images: expected "
                f"(2, {classes}), one for each class"
            )
        if features.dim() != 2:
            raise UserError(
                f"the features of 2 images have the shape {tuple(features.shape)}: expected a "
                "vector for each; set model.feature_layer to a layer whose output is one, such as "
                f"an nn.Flatten(); its layers are {_names(self.module)}"
            )
        if logits.min() >= 0 and torch.allclose(logits.sum(1), torch.ones(2), atol=1e-4):
            warnings.warn(
                "the module returns probabilities, which sum to 1: expected logits; leave the "
                "softmax out",
                stacklevel=2,
            )
        return features.shape[1]

    def _drops(self) -> tuple[tuple[float, int], ...]:
        """Return the rate of each dropout of a step, and how many factors a sample needs."""
        step = ModuleStep(torch.ones(2), None)
        with torch.no_grad(), step:
            self._call(self._params(self.module), self._example, training=True)
        return tuple(step.drops)

    def _check_buffers(self) -> None:
        """Raise UserError if the training step just made changed a buffer that is not kept.

        It would pass from client to client and be in no checkpoint.
        """
        before = dict(self.module.named_buffers())
        module, _ = self._own(self._example)
        for name, buffer in module.named_buffers():
            if name not in self.names and not torch.equal(buffer, before[name].to(buffer)):
                raise UserError(
                    f"the module changes its buffer '{name}' as it trains: of buffers only "
                    "BatchNorm's are kept for each client; use a module without it"
                )

    def _check_samples_apart(self) -> None:
        """Raise UserError if what the module says of an image depends on those beside it.

        Predictions would depend on the batch, and noise that hides a sample would not hide it.
        """
        x = torch.stack([torch.zeros_like(self._example[0]), torch.ones_like(self._example[0])])
        params = self._params(self.module)
        with torch.no_grad(), _explained("one image"):
            together = self._one(params, x, None, None)
            alone = zip(*(self._one(params, one, None, None) for one in x[:, None]), strict=True)
            for of_both, of_each in zip(together, alone, strict=True):
                if not torch.allclose(of_both, torch.cat(of_each), rtol=1e-3, atol=1e-4):
                    raise UserError(
                        "what the module says of an image depends on the others of its batch: "
                        "compute each by itself (recurrent layers and attention need "
                        "batch_first=True)"
                    )

    def _can_be_stacked(self) -> bool:
        """Return whether `vmap` runs a training step, to the same result as a loop."""
        params = self._params(self.module)
        x = torch.stack([self._example, self._example])
        keep = torch.ones(2, 2, sum(units for _, units in self.drops))
        step = TrainingStep(torch.ones(2, 2), keep)

        def two() -> Params:
            return {name: torch.stack([p, p]) for name, p in params.items()}

        with torch.no_grad():
            try:
                at_once = self._at_once(two(), x, step)
            # What vmap cannot do it says by many kinds of errors.
            except Exception:
                self._threads = threading.local()
                return False
            pairs = zip(at_once, self._one_by_one(two(), x, step), strict=True)
            return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


def seeded(make: Make, seed: int) -> nn.Module:
    """Return a module made from PyTorch's generator at this seed, which is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Refuse a module that draws from a generator of the whole process.

    A training step sees what the module calls, but not what PyTorch's own functions call in turn.
    """
    before = _generators()
    yield
    for whose, state in _generators().items():
        if state != before[whose]:
            raise UserError(
                f"the module draws random numbers from {whose} generator, which the run's seed "
                "does not decide: of random layers, only dropout can be used; make weights with "
                "PyTorch's"
            )


def _generators() -> dict[str, object]:
    """Return the state of each generator, by whose it is."""
    return {
        "PyTorch's": torch.random.get_rng_state().tolist(),
        "NumPy's": [np.asarray(part).tolist() for part in np.random.get_state()],
        "Python's": random.getstate(),
    }


@contextmanager
def _explained(images: str = "a batch of two images") -> Iterator[None]:
    """Turn what a module raises when it is first run into one line for the user."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        why = str(error).splitlines() or [repr(error)]
        raise UserError(
            f"the module fails on {images} of this data: {why[0]}; check the shapes it expects"
        ) from error


def _factors(step: TrainingStep | None) -> tuple[Tensor | None, Tensor | None]:
    if step is None:
        return None, None
    return step.weight_KB, step.keep_KBU


def _noting(called: list[str], name: str) -> Any:
    """Return a hook that notes the name of its layer."""

    def note(layer: nn.Module, given: Any, out: Any) -> None:
        called.append(name)

    return note


def _known(module: nn.Module, name: str) -> str:
    """Return the name of a layer, which the module must have unless it is empty."""
    if name and name not in dict(module.named_modules()):
        raise UserError(f"the module has no layer '{name}': its layers are {_names(module)}")
    return name


def _names(module: nn.Module) -> str:
    """Return the names of the first layers, for messages."""
    names = [name for name, _ in module.named_modules() if name]
    more = ", …" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more or "none: put the module into an nn.Sequential"


def _check_parameters(module: nn.Module) -> None:
    """Refuse parameters that clients could not be given copies of, or could not train."""
    for name, p in module.named_parameters():
        if is_lazy(p):
            raise UserError(
                f"the parameter '{name}' is of a lazy layer, whose size is not known: give its "
                "sizes, as in nn.Linear(50, 10)"
            )
        if p.dtype != torch.float32:
            raise UserError(f"the parameter '{name}' is {p.dtype}: expected float32; use .float()")


def _check_layers(module: nn.Module) -> None:
    """Refuse layers whose training would depend on more than the seed and the client's samples."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and not (layer.track_running_stats and layer.momentum):
            raise UserError(
                f"the layer '{name}' is a BatchNorm without running moments or without momentum, "
                "whose predictions would depend on the batch: use the default settings"
            )
        if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and layer.dropout:
            raise UserError(
                f"the layer '{name}' drops out inside its {type(layer).__name__}, where the run's "
                "seed does not reach: set its dropout to 0 and use nn.Dropout between layers"
            )
