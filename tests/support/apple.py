"""A stand-in for an Apple GPU: tensors on it know no float64, and none beside it meets them.

They lie in the CPU's memory. What they are refused is what PyTorch refuses on such a GPU; kernels
that it lacks there, or that round otherwise, are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MPS = torch.device("mps")
CPU = torch.device("cpu")
# What may be asked of a tensor on the GPU with an answer on the CPU.
_AWAY = ("cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__", "__repr__")


class OnApple(Tensor):
    """A tensor that says it is on the GPU."""

    device = property(lambda self: MPS)
    is_cpu = property(lambda self: False)


class Apple(TorchFunctionMode):
    """Lets `device="mps"` and `.to("mps")` work inside the block, and counts the calls there."""

    calls = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "__get__":
            return function(*args, **kwargs)
        given = list(_tensors([args, kwargs]))
        there = any(isinstance(tensor, OnApple) for tensor in given)
        target = _target(name, args, kwargs)
        if name in _AWAY:
            there = False
        elif target is not None:
            there = target.type == "mps"
            args = tuple(CPU if _names(arg, target) else arg for arg in args)
            kwargs |= {"device": CPU} if "device" in kwargs else {}
        elif there:
            _check_together(name, given)
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
            self.calls += there
            return _map(_moved if there else _plain, result)


def _names(value: Any, device: torch.device) -> bool:
    return isinstance(value, (str, torch.device)) and torch.device(value) == device


def _target(name: str, args: Any, kwargs: Any) -> torch.device | None:
    """Return the device that a call names, if it names one."""
    named = kwargs.get("device")
    if named is None and name == "to":
        named = next((arg for arg in args[1:] if isinstance(arg, (str, torch.device))), None)
    return None if named is None else torch.device(named)


def _check_together(name: str, given: list[Tensor]) -> None:
    for tensor in given:
        if not isinstance(tensor, OnApple) and tensor.dim():
            raise RuntimeError(f"{name}: expected all tensors on one device, found cpu and mps")


def _moved(value: Any) -> Any:
    """Return a tensor as one on the GPU, which has no float64."""
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.float64:
        raise TypeError("the MPS framework doesn't support float64")
    # What was changed in place stays the object that it is: gradients are asked of it.
    return value if isinstance(value, OnApple) else value.as_subclass(OnApple)


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, OnApple) else value


def _map(change: Any, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        made = [_map(change, one) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {key: _map(change, one) for key, one in value.items()}
    return change(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
