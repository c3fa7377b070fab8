"""Named tensors in a file, in the safetensors format.

The format is 8 bytes of header length, a JSON header and raw little-endian data. It is implemented
here so that training needs no package beyond the core ones; files are interchangeable with those
of the safetensors library.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.files.atomic import replacing
from fedrfq.files.regular import open_regular

DTYPES: dict[str, torch.dtype] = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# The safetensors library's own limit, in bytes.
MAX_HEADER = 100_000_000
# As many dimensions as a torch tensor may have.
MAX_DIMS = 64
METADATA = "__metadata__"

_CODES = {dtype: code for code, dtype in DTYPES.items()}


class _Entry(NamedTuple):
    """A tensor's place in the data: bytes `begin` to `end`, counted from the end of the header.

    The offsets come first, so that sorting gives the order in the file.
    """

    begin: int
    end: int
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def save(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write all tensors to `path` atomically: a reader sees the old file or the new one.

    Equal tensors and metadata give equal bytes, regardless of their order and device.
    """
    # Widest elements first, so that every tensor's data is aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header = _header(ordered, metadata or {})

    try:
        with replacing(Path(path)) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _, tensor in ordered:
                file.write(_raw(tensor))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"cannot write {path}: {reason}; check the folder and the free space on its disk"
        ) from error


def load(
    path: str | Path, max_bytes: int = 1 << 32, *, links: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors (on the CPU, in the header's order) and the metadata of the file.

    The file is not trusted: anything but a well-formed file of at most `max_bytes` raises
    UserError. A link is followed only with `links`.
    """
    try:
        with open_regular(Path(path), links=links) as file:
            return _read(file, max_bytes)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from error
    except _Malformed as error:
        raise UserError(
            f"{path} is not a usable safetensors file: {error}; fetch or write it again"
        ) from error


def _header(tensors: list[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {}
    if metadata:
        entries[METADATA] = dict(metadata)
    begin = 0
    for name, tensor in tensors:
        if name == METADATA:
            raise UserError(f"cannot save a tensor named {name!r}, a reserved name: rename it")
        if tensor.dtype not in _CODES:
            raise UserError(
                f"cannot save tensor {name!r} of {tensor.dtype}: convert it to {_list_dtypes()}"
            )
        end = begin + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    # Padded to 8 bytes, so that the data begins aligned.
    return text + b" " * (-len(text) % 8)


def _raw(tensor: Tensor) -> memoryview:
    # PyTorch may give a tensor without values a stride of 0, which cannot be seen as bytes.
    if not tensor.numel():
        return memoryview(b"")
    # As bytes, because numpy has no bfloat16.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


class _Malformed(Exception):
    """The file is not well-formed; the message says what was expected and what was found."""


def _read(file: BinaryIO, max_bytes: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    # Before anything is read: every later allocation is bounded by the file's size.
    if size > max_bytes:
        raise _Malformed(f"expected at most {max_bytes} bytes, found {size}")
    length = int.from_bytes(_exactly(file, 8), "little")
    longest = min(MAX_HEADER, size - 8)
    if length > longest:
        raise _Malformed(f"expected a header of at most {longest} bytes, found {length}")
    header = _parse(bytes(_exactly(file, length)))
    metadata = _metadata(header.pop(METADATA, {}))
    entries = [_entry(name, fields) for name, fields in header.items()]
    _check_layout(entries, size - 8 - length)
    # Read in the order of the file, which is what keeps the file's position right.
    tensors = {entry.name: _tensor(file, entry) for entry in sorted(entries)}
    return {entry.name: tensors[entry.name] for entry in entries}, metadata


def _exactly(file: BinaryIO, count: int) -> bytearray:
    buffer = bytearray(count)
    size = file.readinto(buffer)  # type: ignore[attr-defined]
    if size != count:
        raise _Malformed(f"expected {count} more bytes, found {size}")
    return buffer


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"expected a JSON header, found {str(error)[:200]}") from error
    if not isinstance(header, dict):
        raise _Malformed(f"expected a JSON object as header, found {type(header).__name__}")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json.loads would silently keep the last of two equal names.
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name given twice")
    return fields


def _no_constant(constant: str) -> NoReturn:
    # NaN and Infinity are no JSON, though Python reads them.
    raise ValueError(f"the constant {constant}")


def _metadata(value: Any) -> dict[str, str]:
    if not (isinstance(value, dict) and all(isinstance(text, str) for text in value.values())):
        raise _Malformed(f"expected metadata of strings, found {_short(value)}")
    return value


def _entry(name: str, fields: Any) -> _Entry:
    if not (isinstance(fields, dict) and fields.keys() == {"dtype", "shape", "data_offsets"}):
        raise _Malformed(
            f"expected dtype, shape and data_offsets of tensor {name!r}, found {_short(fields)}"
        )
    code = fields["dtype"]
    shape = fields["shape"]
    offsets = fields["data_offsets"]
    if not (isinstance(code, str) and code in DTYPES):
        raise _Malformed(f"expected tensor {name!r} as {_list_dtypes()}, found {_short(code)}")
    if not (_are_counts(shape) and len(shape) <= MAX_DIMS):
        raise _Malformed(
            f"expected a shape of non-negative integers for tensor {name!r}, found {_short(shape)}"
        )
    if not (_are_counts(offsets) and len(offsets) == 2):
        raise _Malformed(f"expected two offsets for tensor {name!r}, found {_short(offsets)}")
    begin, end = offsets
    return _Entry(begin, end, name, DTYPES[code], tuple(shape))


def _are_counts(values: Any) -> bool:
    # `type is int` leaves out bools; 63 bits is what torch can address.
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 63 for value in values
    )


def _check_layout(entries: list[_Entry], size: int) -> None:
    """Check that the tensors cover all `size` bytes of data, each byte exactly once.

    Each must have as many bytes as its type and shape need.
    """
    position = 0
    for entry in sorted(entries):
        if entry.begin != position:
            raise _Malformed(
                f"expected tensor {entry.name!r} to begin at byte {position}, found {entry.begin}"
            )
        needed = math.prod(entry.shape) * entry.dtype.itemsize
        if entry.end - entry.begin != needed:
            found = entry.end - entry.begin
            raise _Malformed(f"expected {needed} bytes for tensor {entry.name!r}, found {found}")
        position = entry.end
    if position != size:
        raise _Malformed(f"expected {position} bytes of data, found {size}")


def _tensor(file: BinaryIO, entry: _Entry) -> Tensor:
    # torch.frombuffer refuses an empty buffer.
    if entry.begin == entry.end:
        return _empty(entry)
    data = _exactly(file, entry.end - entry.begin)
    # Any other byte would be a bool that is neither true nor false.
    if entry.dtype == torch.bool and max(data) > 1:
        raise _Malformed(f"expected bytes 0 and 1 in tensor {entry.name!r}, found {max(data)}")
    return torch.frombuffer(data, dtype=entry.dtype).reshape(entry.shape)


def _empty(entry: _Entry) -> Tensor:
    # No data bounds an empty tensor's other dimensions, and torch multiplies them into strides.
    if math.prod(max(size, 1) for size in entry.shape) * entry.dtype.itemsize >= 1 << 63:
        raise _Malformed(
            f"expected strides of at most 63 bits for tensor {entry.name!r}, "
            f"found shape {_short(entry.shape)}"
        )
    return torch.empty(entry.shape, dtype=entry.dtype)


def _list_dtypes() -> str:
    return ", ".join(DTYPES)


def _short(value: Any) -> str:
    return repr(value)[:80]
