"""Tensor files: exact round trips, the real library's files, hostile bytes, failing writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.files.tensors import DTYPES, load, save

SHAPES = [(), (0,), (3,), (2, 3), (4, 0, 2), (1, 2, 3, 4)]


def make(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(1))
    if dtype == torch.bool:
        return values % 2 == 0
    return (values - (0 if dtype == torch.uint8 else 50)).to(dtype)


def every_tensor() -> dict[str, Tensor]:
    return {
        f"{code}.{len(shape)}.{i}": make(d, shape)
        for code, d in DTYPES.items()
        for i, shape in enumerate(SHAPES)
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


def write_raw(path: Path, header: Any, data: bytes = b"") -> Path:
    if isinstance(header, bytes):
        text = header
    else:
        text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def field(**changes: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def test_round_trip_of_every_dtype_and_shape(tmp_path: Path) -> None:
    save(tmp_path / "t", every_tensor(), {"round": "3", "π": "'\"\n"})
    tensors, metadata = load(tmp_path / "t")
    assert_same(tensors, every_tensor())
    assert metadata == {"round": "3", "π": "'\"\n"}


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 1], dtype=torch.int32)
    save(tmp_path / "t", {"x": bits.view(torch.float32)})
    assert torch.equal(load(tmp_path / "t")[0]["x"].view(torch.int32), bits)


def test_no_tensors(tmp_path: Path) -> None:
    save(tmp_path / "t", {})
    assert load(tmp_path / "t") == ({}, {})


def test_an_empty_array_of_numpy_has_no_stride_and_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    save(path, {"none": torch.from_numpy(np.zeros(0, np.int64))})
    tensors, _ = load(path)
    assert tensors["none"].shape == (0,)


def test_loaded_tensors_can_be_changed_one_by_one(tmp_path: Path) -> None:
    save(tmp_path / "t", {"a": torch.zeros(2), "b": torch.zeros(2)})
    tensors, _ = load(tmp_path / "t")
    tensors["a"] += 1
    assert tensors["b"].tolist() == [0, 0]


def test_non_contiguous_and_trained_tensors(tmp_path: Path) -> None:
    grid = torch.arange(12.0).reshape(3, 4)
    views = {
        "t": grid.T,
        "stride": grid[:, ::2],
        "wide": torch.ones(1).expand(5),
        "p": torch.nn.Parameter(grid),
    }
    save(tmp_path / "t", views)
    assert_same(load(tmp_path / "t")[0], {name: view.detach() for name, view in views.items()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_tensors_come_back_on_the_cpu(tmp_path: Path) -> None:
    save(tmp_path / "t", {"x": torch.arange(6.0, device="cuda")})
    assert_same(load(tmp_path / "t")[0], {"x": torch.arange(6.0)})


def test_bytes_depend_on_contents_alone(tmp_path: Path) -> None:
    tensors = every_tensor()
    save(tmp_path / "a", tensors, {"x": "1", "y": "2"})
    save(tmp_path / "b", dict(reversed(tensors.items())), {"y": "2", "x": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_data_lies_aligned_to_its_type(tmp_path: Path) -> None:
    save(
        tmp_path / "t",
        {"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(1).double(), "c": torch.zeros(1)},
    )
    raw = (tmp_path / "t").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    begins = {
        name: entry["data_offsets"][0] for name, entry in json.loads(raw[8 : 8 + length]).items()
    }
    assert begins == {"b": 0, "c": 8, "a": 12}
    assert length % 8 == 0


def test_the_library_reads_ours(tmp_path: Path) -> None:
    save(tmp_path / "t", every_tensor(), {"k": "v"})
    assert_same(safetensors.torch.load_file(tmp_path / "t"), every_tensor())
    with safetensors.safe_open(tmp_path / "t", "pt") as file:
        assert file.metadata() == {"k": "v"}


def test_we_read_the_librarys(tmp_path: Path) -> None:
    safetensors.torch.save_file(every_tensor(), tmp_path / "t", {"k": "v"})
    tensors, metadata = load(tmp_path / "t")
    assert_same(tensors, every_tensor())
    assert metadata == {"k": "v"}


def test_data_that_lies_unaligned_is_read(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "I32", "shape": [], "data_offsets": [1, 5]},
    }
    tensors, _ = load(write_raw(tmp_path / "t", header, bytes([7, 1, 0, 0, 0])))
    assert (tensors["a"].item(), tensors["b"].item()) == (7, 1)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (field(dtype="F8"), "expected tensor 't' as F16.*found 'F8'"),
        (field(dtype=["F32"]), "found \\['F32'\\]"),
        (field(shape=[3]), "expected 12 bytes for tensor 't', found 8"),
        (field(shape=[-2]), "non-negative integers.*found \\[-2\\]"),
        (field(shape=[2.0]), "found \\[2.0\\]"),
        (field(shape=[True, 2]), "found \\[True, 2\\]"),
        (field(shape=2), "found 2"),
        (field(shape=[1] * 65 + [2]), "non-negative integers"),
        (field(shape=[0, 2**62, 2**62], data_offsets=[0, 0]), "expected 0 bytes of data, found 8"),
        (field(data_offsets=[8, 0]), "begin at byte 0, found 8"),
        (field(data_offsets=[0, 16]), "expected 8 bytes for tensor 't', found 16"),
        (field(data_offsets=[0]), "expected two offsets"),
        (field(shape=[1], data_offsets=[0, 4]), "expected 4 bytes of data, found 8"),
        (field(shape=[4], data_offsets=[0, 16]), "expected 16 bytes of data, found 8"),
        (field() | {"u": field()["t"]}, "expected tensor 'u' to begin at byte 8, found 0"),
        (field(extra=1), "expected dtype, shape and data_offsets"),
        ({"t": None}, "found None"),
        (field() | {"__metadata__": {"a": 1}}, "expected metadata of strings"),
        (field() | {"__metadata__": []}, "expected metadata of strings"),
        ([], "expected a JSON object as header, found list"),
        (b"{", "expected a JSON header"),
        (b"\xff{}", "expected a JSON header"),
        (b'{"__metadata__": NaN}', "the constant NaN"),
        (b'{"__metadata__": {}, "__metadata__": {}}', "given twice"),
        (b"[" * 100_000, "expected a JSON header"),
        (b'{"t": ' + b"9" * 5000 + b"}", "expected a JSON header"),
        (field(dtype="BOOL", shape=[8]), "expected bytes 0 and 1.*found 2"),
    ],
)
def test_hostile_headers(tmp_path: Path, header: Any, message: str) -> None:
    path = write_raw(tmp_path / "t", header, bytes([0, 1, 2, 0, 0, 0, 0, 0]))
    with pytest.raises(UserError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_an_empty_tensor_cannot_have_endless_dimensions(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "t", field(shape=[0, 2**62, 2**62], data_offsets=[0, 0]))
    with pytest.raises(UserError, match="strides"):
        load(path)


@pytest.mark.parametrize("length", [200, 10**8 + 1, 2**63, 2**64 - 1])
def test_header_length_beyond_the_file(tmp_path: Path, length: int) -> None:
    (tmp_path / "t").write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match=f"expected a header of at most 2 bytes, found {length}"):
        load(tmp_path / "t")


def test_header_cap_holds_in_large_files(tmp_path: Path) -> None:
    with (tmp_path / "t").open("wb") as file:
        file.write((150_000_000).to_bytes(8, "little"))
        file.truncate(200_000_000)  # sparse: takes no space on disk
    with pytest.raises(UserError, match="at most 100000000 bytes, found 150000000"):
        load(tmp_path / "t")


def test_max_bytes(tmp_path: Path) -> None:
    save(tmp_path / "t", {"x": torch.zeros(100)})
    size = (tmp_path / "t").stat().st_size
    load(tmp_path / "t", max_bytes=size)
    with pytest.raises(UserError, match=f"expected at most {size - 1} bytes, found {size}"):
        load(tmp_path / "t", max_bytes=size - 1)


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent"):
        load(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot read"):
        load(tmp_path)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_raise_usererror_or_keep_their_size(
    tmp_path: Path, data: st.DataObject
) -> None:
    tensors = {
        "a": torch.arange(4.0),
        "b": torch.tensor([True, False]),
        "c": torch.zeros(0, 3),
        "d": torch.tensor(7),
    }
    save(tmp_path / "good", tensors, {"k": "v"})
    raw = bytearray((tmp_path / "good").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))]
    (tmp_path / "bad").write_bytes(raw)
    try:
        found, _ = load(tmp_path / "bad")
    except UserError:
        return
    sizes = [tensor.numel() * tensor.element_size() for tensor in found.values()]
    assert sum(sizes) == len(raw) - 8 - int.from_bytes(raw[:8], "little")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "t", {"x": torch.arange(3.0)})
    raw = (tmp_path / "t").read_bytes()
    for length in range(len(raw)):
        (tmp_path / "t").write_bytes(raw[:length])
        with pytest.raises(UserError):
            load(tmp_path / "t")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("c", torch.zeros(1, dtype=torch.complex64)), ("__metadata__", torch.ones(1))],
)
def test_what_cannot_be_saved(tmp_path: Path, name: str, tensor: Tensor) -> None:
    with pytest.raises(UserError, match=name):
        save(tmp_path / "t", {name: tensor})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_full_disk_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    save(tmp_path / "t", {"x": torch.zeros(2)})
    monkeypatch.setattr(*((os, "fsync", full) if step == "fsync" else (Path, "replace", full)))
    with pytest.raises(UserError, match=r"cannot write .*t: No space left on device"):
        save(tmp_path / "t", {"x": torch.ones(2)})
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert load(tmp_path / "t")[0]["x"].tolist() == [0, 0]


def test_missing_folder_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        save(tmp_path / "absent" / "t", {})


def test_killed_half_way_the_old_file_stays(tmp_path: Path) -> None:
    save(tmp_path / "t", {"x": torch.zeros(2)})
    script = (
        "import os, sys, torch; from fedrfq.files.tensors import save; "
        "os.fsync = lambda _: os.kill(os.getpid(), 9); save(sys.argv[1], {'x': torch.ones(2)})"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "t")], check=False)
    assert done.returncode == -9
    assert load(tmp_path / "t")[0]["x"].tolist() == [0, 0]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        save(tmp_path / "t", {})
    finally:
        os.umask(old)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o644
