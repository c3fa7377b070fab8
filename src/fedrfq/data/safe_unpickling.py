"""Read a pickle of tensors without letting it call anything but what tensors need."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any

from fedrfq.errors import UserError


def tensors(data: bytes, what: str) -> Any:
    """Return the object in `data`; refuse all but tensors and plain containers."""
    try:
        return _TensorsOnly(io.BytesIO(data)).load()
    except UserError:
        raise
    except Exception as error:  # a broken pickle may raise nearly anything
        raise UserError(
            f"{what}: expected a pickle of tensors, found a damaged file ({error!r:.100})"
        ) from error


def _storage(data: bytes) -> Any:
    """Do what torch.storage._load_from_bytes does, but without trusting the data."""
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class _TensorsOnly(pickle.Unpickler):
    """An unpickler that finds three names and no others."""

    def find_class(self, module: str, name: str) -> Any:
        from torch._utils import _rebuild_tensor_v2

        # All that a pickled dict of tensors refers to.
        allowed = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
            ("torch.storage", "_load_from_bytes"): _storage,
        }
        if (module, name) not in allowed:
            raise UserError(
                f"expected a pickle of tensors only, found a call of {module}.{name}; "
                "do not use this file"
            )
        return allowed[module, name]
