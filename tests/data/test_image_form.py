"""Pictures of every kind become alike as the form says, or are refused with the remedy."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrfq import experiment
from fedrfq.data import ImageForm, load
from fedrfq.data.image_decoding import pixels
from fedrfq.data.image_form import suggested_window
from fedrfq.errors import UserError
from fedrfq.runs.inference import _image


def folder(tmp_path: Path, *images: Image.Image) -> str:
    """Write two classes of these images; the first is the first that is read."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number, image in enumerate(images):
            image.save(tmp_path / name / f"{number}.png")
    return str(tmp_path)


def grey(value: int = 7, size: tuple[int, int] = (4, 2)) -> Image.Image:
    return Image.new("L", size, value)


def deep(*values: int) -> Image.Image:
    return Image.fromarray(np.array([values], np.uint16))


def test_a_window_maps_its_ends_to_black_and_white_and_cuts_off_beyond(tmp_path: Path) -> None:
    path = folder(tmp_path, deep(0, 1000, 1510, 2020, 4000), deep(0, 1000, 1510, 2020, 4000))
    with pytest.raises(UserError, match=r"uint16 from 0 to 4000.*--set data\.window=0:4095"):
        load(path)
    # (1510 − 1000) / 1020 × 255 = 127.5, which rounds to the even 128.
    data = load(path, ImageForm.of(window="1000:2020"))
    assert data.train_x[0, 0, 0].tolist() == [0, 0, 128, 255, 255]


def test_eight_bits_are_taken_as_they_are_beside_a_window(tmp_path: Path) -> None:
    data = load(folder(tmp_path, grey(200), grey(200)), ImageForm.of(window="0:4095"))
    assert (data.train_x == 200).all()


def test_floats_and_negative_values_of_scanners(tmp_path: Path) -> None:
    labels = {"train_y": np.array([0, 1]), "test_y": np.array([0, 1])}
    images = np.linspace(-1000, 400, 8, dtype=np.float32).reshape(2, 1, 2, 2)
    np.savez(tmp_path / "ct.npz", train_x=images, test_x=images, **labels)
    with pytest.raises(UserError, match=r"float32 from -1000 to 400.*data\.window=-1000:400"):
        load(str(tmp_path / "ct.npz"))
    data = load(str(tmp_path / "ct.npz"), ImageForm.of(window="-1000:400"))
    assert data.train_x.ravel().tolist() == [0, 36, 73, 109, 146, 182, 219, 255]
    # By its path alone it would be other data.
    assert data.origin == ""
    images[0, 0, 0, 0] = np.nan
    np.savez(tmp_path / "ct.npz", train_x=images, test_x=images, **labels)
    with pytest.raises(
        UserError, match="infinite or too large in 1 of 2 samples, first in sample 0"
    ):
        load(str(tmp_path / "ct.npz"), ImageForm.of(window="-1000:400"))


def test_the_usual_windows() -> None:
    ranges = {
        (0.0, 1.0): "0:1",
        (0.0, 254.0): "0:255",
        (3.0, 700.0): "0:1023",
        (0.0, 4095.0): "0:4095",
        (0.0, 70_000.0): "0:70000",
        (-1.0, 0.5): "-1:1",
    }
    assert {ends: suggested_window(*ends) for ends in ranges} == ranges


def test_one_colour_picture_among_grey_ones_changes_nothing_silently(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 2), (255, 0, 0))
    path = folder(tmp_path, grey(), grey(), red)
    with pytest.raises(UserError, match=r"4 grey, 2 colour \(cat/2\.png\); .*recolour=true$"):
        load(path)
    data = load(path, ImageForm.of("1x2x4", recolour=True))
    assert data.shape == (1, 2, 4)
    # 0.299 × 255 = 76.245
    assert {7, 76} == set(np.unique(np.concatenate([data.train_x, data.test_x])).tolist())


def test_grey_pictures_in_colour_files_are_grey(tmp_path: Path) -> None:
    data = load(folder(tmp_path, grey(), Image.new("RGB", (4, 2), (9, 9, 9))))
    assert data.shape == (1, 2, 4)


def test_grey_pictures_in_colour_files_are_grey_even_where_they_come_first(tmp_path: Path) -> None:
    data = load(folder(tmp_path, Image.new("RGB", (4, 2), (9, 9, 9)), grey(), grey(200)))
    assert data.shape == (1, 2, 4)
    assert set(np.unique(data.train_x).tolist()) <= {7, 9, 200}


def test_test_pictures_must_be_like_the_training_pictures(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    folder(tmp_path / "train", Image.new("RGB", (4, 2), (9, 9, 9)))
    folder(tmp_path / "test", grey())
    data = load(str(tmp_path))
    assert (data.train_x.shape, data.test_x.shape) == ((2, 1, 2, 4), (2, 1, 2, 4))
    for name in ("cat", "dog"):
        grey(size=(5, 2)).save(tmp_path / "test" / name / "0.png")
    with pytest.raises(UserError, match=r"2 of 4×2, 2 of 5×2 \(test/cat/0\.png\) pixels"):
        load(str(tmp_path))


def test_colour_files_of_grey_pictures_alone_stay_as_they_are(tmp_path: Path) -> None:
    colour = [Image.new("RGB", (4, 2), (9, 9, 9))] * 2
    assert load(folder(tmp_path, *colour)).shape == (3, 2, 4)


def test_what_most_pictures_are_is_proposed_not_what_the_first_is(tmp_path: Path) -> None:
    red = Image.new("RGB", (5, 2), (255, 0, 0))
    path = folder(tmp_path, red, grey(), grey())
    with pytest.raises(UserError) as refused:
        load(path)
    assert str(refused.value) == (
        f"{path}: expected pictures that are alike, found 4 grey, 2 colour (cat/0.png); 4 of 4×2, 2"
        " of 5×2 (cat/0.png) pixels, width × height; convert those that differ, or give --set"
        " data.shape=1x2x4 --set data.recolour=true --set data.resize=true"
    )
    with pytest.raises(UserError, match="expected pictures in grey of 5×2 pixels, found 4 grey"):
        load(path, ImageForm.of("1x2x5"))
    proposed = ImageForm.of("1x2x4", recolour=True, resize=True)
    assert load(path, proposed).shape == (1, 2, 4)


def test_a_grey_picture_in_a_colour_file_counts_as_what_is_expected(tmp_path: Path) -> None:
    red, same = (Image.new("RGB", (4, 2), colour) for colour in [(255, 0, 0), (9, 9, 9)])
    path = folder(tmp_path, red, same, grey())
    with pytest.raises(UserError, match=r"found 4 grey, 2 colour \(cat/0\.png\)"):
        load(path)
    with pytest.raises(UserError, match=r"found 4 colour, 2 grey \(cat/2\.png\)"):
        load(path, ImageForm.of("3x2x4"))


def test_of_many_sizes_some_are_listed(tmp_path: Path) -> None:
    path = folder(tmp_path, *(grey(size=(4 + k, 2)) for k in range(6)))
    with pytest.raises(
        UserError, match=r"2 of 7×2 \(cat/3\.png\), 2 others pixels, width × height"
    ):
        load(path)


def test_the_window_that_is_proposed_is_that_of_all_pictures(tmp_path: Path) -> None:
    """The brightest pixel of the first picture says little of the others."""
    path = folder(tmp_path, deep(0, 897), deep(0, 4000), grey(size=(2, 1)))
    with pytest.raises(UserError, match=r"uint16 from 0 to 4000.*--set data\.window=0:4095$"):
        load(path)
    images = {"train_x": np.full((2, 2, 2), 897.0), "test_x": np.full((2, 2, 2), 4000.0)}
    labels = {"train_y": np.array([0, 1]), "test_y": np.array([0, 1])}
    np.savez(tmp_path / "own.npz", **images, **labels)
    with pytest.raises(UserError, match=r"float64 from 897 to 4000.*--set data\.window=0:4095$"):
        load(str(tmp_path / "own.npz"))


def test_all_that_differs_is_said_at_once(tmp_path: Path) -> None:
    path = folder(tmp_path, deep(0, 4000), grey(size=(3, 1)), grey(size=(3, 1)))
    with pytest.raises(UserError) as refused:
        load(path)
    said = str(refused.value)
    proposed = said.partition("or give ")[2].split()[1::2]
    chosen = experiment.load(sets=[f"data.name={path}", *proposed])
    assert chosen.data.load().shape == (1, 1, 3)


def test_a_picture_that_shines_through_is_refused(tmp_path: Path) -> None:
    opaque = Image.new("RGBA", (4, 2), (255, 0, 0, 255))
    clear = Image.new("RGBA", (4, 2), (255, 0, 0, 254))
    assert load(folder(tmp_path, opaque, opaque)).shape == (3, 2, 4)
    clear.save(tmp_path / "cat/1.png")
    with pytest.raises(UserError, match=r"1\.png: expected a picture without transparency"):
        load(str(tmp_path))
    # A grey level may stand for what is transparent.
    grey().save(tmp_path / "cat/1.png", transparency=7)
    with pytest.raises(UserError, match=r"1\.png: expected a picture without transparency"):
        load(str(tmp_path))


def test_a_photograph_is_as_its_camera_was_held(tmp_path: Path) -> None:
    """Orientation 6: what is stored as the left column is the top row, from right to left."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for picture in (Image.new("RGB", (4, 2)), grey(), deep(1, 2, 3, 4)):
        path = tmp_path / "held.png"
        picture.save(path, exif=exif)
        channels = 3 if picture.mode == "RGB" else 1
        window = ImageForm.of(window="0:255")
        shape = (channels, picture.width, picture.height)
        assert pixels(path, 100, "it", window).shape == shape
    Image.fromarray(np.array([[10, 20], [30, 40]], np.uint8)).save(path, exif=exif)
    assert pixels(path, 100, "it").tolist() == [[[30, 10], [40, 20]]]


def test_colours_for_print_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "print.jpg"
    Image.new("CMYK", (4, 2)).save(path)
    with pytest.raises(UserError, match="it: expected grey or RGB colours, found CMYK; save the"):
        pixels(path, 100, "it")


def test_a_resized_picture_keeps_its_mean(tmp_path: Path) -> None:
    halves = np.zeros((4, 8), np.uint8)
    halves[:, 4:] = 200
    path = folder(tmp_path, Image.fromarray(halves), Image.fromarray(halves))
    data = load(path, ImageForm.of("1x2x2", resize=True))
    assert data.train_x[0, 0, 0, 0] < 40 < 160 < data.train_x[0, 0, 0, 1]
    assert data.train_x[0].mean() == pytest.approx(100, abs=1)


def test_an_npz_is_fitted_too(tmp_path: Path) -> None:
    arrays = {f"{part}_x": np.full((2, 3, 4, 4), 50, np.uint8) for part in ("train", "test")}
    labels = {f"{part}_y": np.array([0, 1]) for part in ("train", "test")}
    np.savez(tmp_path / "own.npz", **arrays, **labels)
    path = str(tmp_path / "own.npz")
    with pytest.raises(UserError, match=r"colour of 2×2 pixels, found 4 of 4×4 \(train_x\[0\]\)"):
        load(path, ImageForm.of("3x2x2"))
    assert load(path, ImageForm.of("3x2x2", resize=True)).shape == (3, 2, 2)


def test_colours_of_16_bits_are_refused_because_half_of_them_would_be_lost(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0" + bytes(6))
    path = folder(tmp_path, grey(), grey())
    (tmp_path / "cat" / "0.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    )
    with pytest.raises(UserError, match="expected colours of 8 bits, found 16"):
        load(path)


@pytest.mark.parametrize(
    "settings",
    [
        {"shape": "28x28"},
        {"shape": "2x28x28"},
        {"shape": "1x0x28"},
        {"shape": "1x9999999x9999999"},
        {"window": "5"},
        {"window": "5:5"},
        {"window": "0:inf"},
        {"window": "a:b"},
    ],
)
def test_a_form_that_is_none_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"expected .*, found"):
        ImageForm.of(**settings)


def test_an_experiments_settings_are_the_form_of_its_data(tmp_path: Path) -> None:
    path = folder(tmp_path, deep(0, 2047), deep(0, 2047))
    chosen = experiment.load(sets=[f"data.name={path}", "data.window=0:4095"])
    assert chosen.data.load().train_x[0].ravel().tolist() == [0, 127]
    assert experiment.from_table(chosen.table()) == chosen


def test_what_is_predicted_is_converted_like_what_was_trained_on(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), (255, 0, 0)).save(tmp_path / "red.png")
    deep(0, 4095).save(tmp_path / "deep.png")
    form = ImageForm.of("1x2x2", "0:4095", resize=True, recolour=True)
    assert _image(tmp_path / "red.png", (1, 2, 2), form).tolist() == [[[76, 76], [76, 76]]]
    assert _image(tmp_path / "deep.png", (1, 1, 2), form).tolist() == [[[0, 255]]]


def test_a_known_dataset_has_a_form_of_its_own() -> None:
    with pytest.raises(UserError, match="mnist5k has a form of its own"):
        load("mnist5k", ImageForm.of("1x28x28"))
