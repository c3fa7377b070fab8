"""Folders of pictures: what is read, and what is refused because it would be overlooked."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrfq.data import array_file, image_folder
from fedrfq.data.image_decoding import pixels
from fedrfq.data.image_form import ImageForm
from fedrfq.errors import UserError

WINDOW = ImageForm.of(window="0:4095")
DEEP = np.arange(16, dtype=np.uint16).reshape(4, 4) * 273


def classes(folder: Path) -> Path:
    for name in ("bag", "boot"):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (4, 4), 40 * number).save(folder / name / f"{number}.png")
    return folder


def test_pictures_in_a_folder_below_a_class_are_not_overlooked(tmp_path: Path) -> None:
    below = classes(tmp_path) / "bag" / "patient-1"
    below.mkdir()
    Image.new("L", (4, 4)).save(below / "2.png")
    with pytest.raises(UserError, match=r"patient-1: expected pictures .*labels\.csv"):
        image_folder.read(tmp_path)


@pytest.mark.parametrize("name", ["scan.dcm", "scan.BMP", "scan.npy"])
def test_pictures_of_other_kinds_are_not_overlooked(tmp_path: Path, name: str) -> None:
    (classes(tmp_path) / "bag" / name).write_bytes(b"x")
    with pytest.raises(UserError, match="convert it, or move it elsewhere"):
        image_folder.read(tmp_path)


def test_pictures_beside_the_folders_of_the_classes_are_not_overlooked(tmp_path: Path) -> None:
    classes(tmp_path)
    Image.new("L", (4, 4)).save(tmp_path / "lost.png")
    with pytest.raises(UserError, match=r"lost\.png: .*found one beside them; move it"):
        image_folder.read(tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_one_part_of_two_is_no_class(tmp_path: Path, part: str) -> None:
    classes(tmp_path / part)
    with pytest.raises(UserError, match="the folders train and test, found only one of them"):
        image_folder.read(tmp_path)


def test_a_file_that_is_no_picture_is_named_without_where_its_bytes_lie(tmp_path: Path) -> None:
    folder = classes(tmp_path) / "bag"
    (folder / "0.png").write_text("no picture")
    with pytest.raises(UserError, match=r"0\.png: .*found a damaged or other file; replace it"):
        image_folder.read(tmp_path)
    (folder / "0.png").write_text("")
    with pytest.raises(UserError, match=r"0\.png: .*found an empty file"):
        image_folder.read(tmp_path)
    (folder / "0.png").unlink()
    (folder / "0.png").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"0\.png: .*cannot be read \(No such file"):
        image_folder.read(tmp_path)


def test_notes_and_hidden_files_are_nobodys_samples(tmp_path: Path) -> None:
    for name in ("notes.txt", "Thumbs.db", "._0.png"):
        (classes(tmp_path / name) / "bag" / name).write_bytes(b"x")
        (tmp_path / name / ".ipynb_checkpoints").mkdir()
        found = image_folder.read(tmp_path / name)
        assert (found.classes, len(found.train_x)) == (("bag", "boot"), 2)


@pytest.mark.parametrize("compression", ["raw", "packbits", "tiff_lzw", "tiff_adobe_deflate"])
def test_a_tiff_of_16_bits_goes_through_the_window(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(DEEP).save(path, compression=compression)
    found = pixels(path, 100, "a", WINDOW)
    assert found.ravel().tolist() == [17 * k for k in range(16)]
    with pytest.raises(UserError, match=r"--set data\.window=0:4095"):
        pixels(path, 100, "a")


def test_pillow_prints_nothing_of_its_own(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A TIFF with two values where there should be one."""
    path = tmp_path / "odd.tif"
    Image.new("L", (4, 4), 7).save(path)
    data = bytearray(path.read_bytes())
    (first,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, first)
    for place in range(first + 2, first + 2 + 12 * entries, 12):
        tag, kind = struct.unpack_from("<HH", data, place)
        if tag == 259:
            struct.pack_into("<HHIHH", data, place, tag, kind, 2, 1, 1)
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="too many entries"), Image.open(path):
        pass
    recwarn.clear()
    assert (pixels(path, 100, "odd") == 7).all()
    assert not recwarn


def test_what_a_tiff_may_be_and_a_picture_is_not(tmp_path: Path) -> None:
    page = Image.fromarray(DEEP)
    page.save(tmp_path / "pages.tif", save_all=True, append_images=[page])
    page.save(tmp_path / "white.tif", tiffinfo={262: 0})
    Image.new("RGB", (4, 4)).save(tmp_path / "jpeg.tif", compression="jpeg")
    for name, reason in [("pages", "one page"), ("white", "0 is black"), ("jpeg", "LZW")]:
        with pytest.raises(UserError, match=reason):
            pixels(tmp_path / f"{name}.tif", 100, name, WINDOW)


def test_a_tiff_with_a_second_page_of_nothing_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(DEEP).save(path)
    data = bytearray(path.read_bytes())
    (first,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, first)
    # The link to the next page stands behind the entries of 12 bytes.
    struct.pack_into("<I", data, first + 2 + 12 * entries, len(data))
    path.write_bytes(data + bytes(6))
    with pytest.raises(UserError, match="damaged or other file"):
        pixels(path, 100, "a", WINDOW)


def test_an_npz_that_would_grow_too_large_when_resized_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.zeros((4, 2, 2), np.uint8)
    labels = [0, 0, 1, 1]
    path = tmp_path / "a.npz"
    np.savez(path, train_x=images, test_x=images, train_y=labels, test_y=labels)
    form = ImageForm.of("1x8x8", resize=True)
    monkeypatch.setattr(array_file, "MAX_BYTES", 4 * 64)
    assert array_file.read(path, form=form).train_x.shape == (4, 1, 8, 8)
    monkeypatch.setattr(array_file, "MAX_BYTES", 4 * 64 - 1)
    with pytest.raises(UserError, match="found more once they are resized"):
        array_file.read(path, form=form)
