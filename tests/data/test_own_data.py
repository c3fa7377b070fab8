"""The user's own data: .npz in every layout, folders of images."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrfq.data import ImageForm, at_path, info, load
from fedrfq.data.split import by_content, by_each_image
from fedrfq.errors import UserError

RANDOM = np.random.default_rng(5)


def arrays(**changes):
    """A small valid dataset of 4 and 2 colour images, with changes."""
    usual = {
        "train_x": RANDOM.integers(0, 256, (4, 3, 8, 6), dtype=np.uint8),
        "train_y": np.array([0, 1, 0, 1]),
        "test_x": RANDOM.integers(0, 256, (2, 3, 8, 6), dtype=np.uint8),
        "test_y": np.array([1, 0]),
    }
    return {key: value for key, value in {**usual, **changes}.items() if value is not None}


@pytest.fixture
def saved(tmp_path):
    def save(**changes):
        np.savez(tmp_path / "own.npz", **arrays(**changes))
        return str(tmp_path / "own.npz")

    return save


def test_npz_channels_first(saved):
    given = arrays()
    data = load(saved(**given))
    assert (data.train_x == given["train_x"]).all()
    assert (data.name, data.classes) == ("own", ("0", "1"))
    assert data.train_groups is None


def test_npz_channels_last_and_grey_and_fortran_order(saved):
    given = arrays()
    last = {
        key: np.asfortranarray(given[key].transpose(0, 2, 3, 1)) for key in ("train_x", "test_x")
    }
    assert (load(saved(**{**given, **last})).train_x == given["train_x"]).all()
    grey = {key: given[key][:, 0] for key in ("train_x", "test_x")}
    assert load(saved(**{**given, **grey})).shape == (1, 8, 6)


def test_every_layout_has_the_same_hash(saved):
    given = arrays()
    last = {key: given[key].transpose(0, 2, 3, 1) for key in ("train_x", "test_x")}
    assert load(saved(**given)).sha256 == load(saved(**{**given, **last})).sha256


def test_compressed_npz_and_small_label_types(tmp_path):
    given = arrays(train_y=np.array([0, 1, 0, 1], np.uint8), test_y=np.array([1, 0], np.int16))
    np.savez_compressed(tmp_path / "own.npz", **given)
    assert load(str(tmp_path / "own.npz")).train_y.dtype == np.int64


def test_mean_and_std_are_those_of_the_training_images(saved):
    given = arrays()
    data = load(saved(**given))
    scaled = given["train_x"].astype(float) / 255
    assert data.mean == pytest.approx(scaled.mean((0, 2, 3)))
    assert data.std == pytest.approx(scaled.std((0, 2, 3)))


def test_flat_images_have_spread_one(saved):
    flat = np.full((4, 3, 8, 6), 7, np.uint8)
    assert load(saved(train_x=flat)).std == (1.0, 1.0, 1.0)


def test_classes_and_groups(saved):
    path = saved(
        classes=np.array(["cat", "dog"]), train_groups=np.arange(4), test_groups=np.arange(2)
    )
    data = load(path)
    assert data.classes == ("cat", "dog")
    assert data.train_groups.tolist() == [0, 1, 2, 3]
    assert info(path)["writers"] == 4


def test_labels_may_be_names(saved):
    names = {"train_y": np.array(["dog", "cat", "dog", "dog"]), "test_y": np.array(["cat", "dog"])}
    data = load(saved(**names))
    assert data.classes == ("cat", "dog")
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([1, 0, 1, 1], [0, 1])
    ordered = load(saved(**names, classes=np.array(["dog", "cat"])))
    assert ordered.train_y.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train_x": None}, "found no train_x"),
        ({"train_x": np.zeros((4, 3, 8, 6), np.float32)}, r"float32 from 0 to 0.*data\.window=0:1"),
        ({"train_x": np.full((4, 3, 8, 6), 700, np.int32)}, r"int32 from 700.*data\.window=0:1023"),
        ({"train_x": np.zeros((4, 2, 8, 6), np.uint8)}, "1 or 3 channels"),
        ({"train_x": np.zeros((0, 3, 8, 6), np.uint8), "train_y": np.zeros(0, int)}, "non-empty"),
        ({"train_x": np.zeros((4, 1, 8, 6), np.uint8)}, "train and test images of the same shape"),
        ({"train_y": np.array([0, 1, 0])}, "expected 4 entries in train_y"),
        ({"train_y": np.array([[0, 1, 0, 2]])}, "one-dimensional array of integers"),
        (
            {"train_y": np.array([1, 2, 1, 2]), "test_y": np.array([2, 1])},
            r"found labels from 1 \(1 to 2\); subtract 1",
        ),
        ({"train_y": np.array([0, 1, 0, 3])}, "found 0, 1, 3; number the classes anew"),
        ({"train_y": np.eye(2)[[0, 1, 0, 1]]}, r"\(one-hot\); store train_y\.argmax\(1\)"),
        ({"train_y": np.array([0.0, 1, 0, 1])}, r"found float64; store train_y\.astype\(int\)"),
        (
            {"train_y": np.array([[0], [1], [0], [1]])},
            r"found one of 4×1; store train_y\.ravel\(\)",
        ),
        (
            {"train_y": np.array([["a"], ["b"], ["a"], ["b"]]), "test_y": np.array(["a", "b"])},
            r"found one of 4×1; store train_y\.ravel\(\)",
        ),
        ({"train_y": np.array([[1], [1], [1], [1]])}, r"store train_y\.ravel\(\)"),
        (
            {"train_y": np.array([b"a", b"b", b"a", b"b"]), "test_y": np.array([b"a", b"b"])},
            r"2 things.*store train_y\.astype\(str\) .*store test_y\.astype\(str\) if it is text",
        ),
        ({"train_y": np.array(["a", "b", 0, 1], object)}, r"store train_y\.astype\(str\)"),
        ({"train_y": np.array([0.5, 1, 0, 1])}, "one-dimensional array of integers"),
        ({"train_y": np.array(["a", "b", "a", "b"])}, "one-dimensional array of integers"),
        (
            {
                "train_y": np.array(["a", "b", "a", "b"]),
                "test_y": np.array(["b", "z"]),
                "classes": np.array(["a", "b"]),
            },
            "labels that are in `classes`, found 'z'",
        ),
        ({"train_x": np.full((4, 3, 8, 6), np.nan)}, "NaN, infinite or too large in 4 of 4"),
        ({"train_y": np.array([0, -1, 0, 1])}, "none left out, found -1, 0, 1; number the classes"),
        (
            {"test_y": np.array([0, 2]), "classes": np.array(["a", "b"])},
            "expected test labels 0 to 1, found 0 to 2",
        ),
        ({"train_y": np.array([0, 1, 0, 10**12])}, "expected labels below 10000"),
        (
            {"train_y": np.zeros(4, int), "test_y": np.zeros(2, int)},
            "expected 2 to 10000 classes, found 1",
        ),
        ({"classes": np.array(["a", "a"])}, "distinct class names"),
        ({"classes": np.array(["a", "\x1b[31m"])}, "printable class names"),
        ({"classes": np.array(["a", ""])}, "printable class names"),
        ({"classes": np.array([["a", "b"]])}, "one-dimensional array of at most 10000 classes"),
        ({"train_groups": np.arange(4)}, "groups for both"),
        (
            {"train_groups": np.arange(3), "test_groups": np.arange(2)},
            "expected 4 entries in train_groups",
        ),
        ({"classes": np.array(["a", {}], dtype=object)}, "expected numbers or text"),
    ],
)
def test_what_is_wrong_with_an_npz_is_said(saved, changes, reason):
    with pytest.raises(UserError, match=reason):
        load(saved(**changes))


def test_faults_that_have_nothing_to_do_with_each_other_are_said_at_once(saved):
    images = np.full((4, 3, 8, 6), 0.5)
    images[2, 0, 0, 0] = np.nan
    path = saved(
        train_x=np.full((4, 3, 8, 6), 700.0),
        train_y=np.eye(2)[[0, 1, 0, 1]],
        test_y=np.array([[0], [1]]),
        train_groups=np.zeros(4),
        test_groups=np.arange(2),
    )
    with pytest.raises(UserError) as refused:
        load(path)
    said = str(refused.value)
    for remedy in ("train_y.argmax(1)", "test_y.ravel()", "data.window=0:1023", "train_groups.as"):
        assert remedy in said
    assert said.startswith("4 things are wrong: (1) ")
    with pytest.raises(UserError, match=r"in 1 of 4 samples, first in sample 2; .* 2 of 2 samples"):
        load(saved(train_x=images, test_x=np.full((2, 3, 8, 6), np.inf)))
    with pytest.raises(UserError, match="found no train_y and no test_x; add"):
        load(saved(train_y=None, test_x=None))


def test_a_file_without_a_test_part_is_split_by_its_images(saved):
    images = RANDOM.integers(0, 256, (10, 8, 6), dtype=np.uint8)
    given = {
        "train_x": images,
        "train_y": np.arange(10) % 2,
        "train_groups": np.arange(10),
        "test_x": None,
        "test_y": None,
    }
    data = load(saved(**given))
    assert (len(data.train_x), np.bincount(data.test_y).tolist()) == (8, [1, 1])
    found = np.concatenate([data.train_groups, data.test_groups])
    assert sorted(found) == list(range(10))
    assert (np.concatenate([data.train_x, data.test_x])[:, 0] == images[found]).all()
    assert (np.concatenate([data.train_y, data.test_y]) == found % 2).all()
    with pytest.raises(UserError, match="expected 10 entries in train_y"):
        load(saved(**given | {"train_y": np.arange(8) % 2}))
    with pytest.raises(UserError, match="or train_x and train_y alone, found no test_x; add"):
        load(saved(**given | {"test_y": np.arange(2)}))


def test_where_noise_hides_images_one_more_moves_no_other_to_the_test_part(saved):
    images = RANDOM.integers(0, 256, (40, 8, 6), dtype=np.uint8)

    def trained(count):
        labels = np.arange(count) % 2
        path = saved(train_x=images[:count], train_y=labels, test_x=None, test_y=None)
        return {image.tobytes() for image in load(path, split=by_each_image).train_x}

    for count in range(30, 40):
        new = {images[count].tobytes()}
        assert trained(count + 1) - new == trained(count) - new


def test_images_that_another_split_trained_on_still_have_a_fifth_to_test():
    images = RANDOM.integers(0, 256, (1000, 8, 6), dtype=np.uint8)
    labels = np.zeros(1000, np.int64)
    trained, _ = by_content(images, labels, 0.2, "images")
    _, tested = by_each_image(images[trained], labels[trained], 0.2, "images")
    assert 0.1 < len(tested) / len(trained) < 0.3


def test_a_pipe_in_place_of_a_table_of_labels_is_refused_in_words(tmp_path):
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(
        UserError, match=r"labels\.csv: .*found: it is a pipe, socket or"
    ) as refused:
        load(str(tmp_path))
    assert "Errno" not in str(refused.value)


def test_where_one_may_not_look_there_is_nothing(monkeypatch):
    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    assert at_path("another's/own.npz") is None


def test_a_file_that_is_no_npz(tmp_path):
    (tmp_path / "own.npz").write_text("hello")
    with pytest.raises(UserError, match=r"expected a complete \.npz"):
        load(str(tmp_path / "own.npz"))


def draw(path, size=(6, 8), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,)}[mode]
    Image.fromarray(RANDOM.integers(0, 256, (*size[::-1], *channels), dtype=np.uint8)).save(path)


def test_a_folder_with_train_and_test(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        for name in ("cat", "dog"):
            for number in range(count):
                draw(tmp_path / part / name / f"{number}.png", mode="RGB")
    data = load(str(tmp_path))
    assert data.train_x.shape == (6, 3, 8, 6)
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_y.tolist() == [0, 1]
    with Image.open(tmp_path / "train" / "dog" / "2.png") as image:
        assert (data.train_x[5] == np.asarray(image).transpose(2, 0, 1)).all()


def test_a_plain_folder_is_split_a_fifth_a_class_and_always_the_same_way(tmp_path):
    for name, count in (("cat", 10), ("dog", 5), ("eel", 2)):
        for number in range(count):
            draw(tmp_path / "a" / name / f"{number}.png")
    first = load(str(tmp_path / "a"))
    assert np.bincount(first.train_y).tolist() == [8, 4, 1]
    assert np.bincount(first.test_y).tolist() == [2, 1, 1]
    assert load(str(tmp_path / "a")).sha256 == first.sha256
    for path in (tmp_path / "a" / "cat").iterdir():
        path.rename(path.with_name(f"x{9 - int(path.stem)}.png"))
    again = load(str(tmp_path / "a"))
    assert {image.tobytes() for image in again.test_x} == {
        image.tobytes() for image in first.test_x
    }


def test_grey_and_colour_are_mixed_only_if_one_says_so_and_jpg_is_read(tmp_path):
    draw(tmp_path / "cat" / "0.png")
    draw(tmp_path / "cat" / "1.png", mode="RGB")
    draw(tmp_path / "dog" / "0.jpg")
    draw(tmp_path / "dog" / "1.JPEG", mode="RGB")
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    with pytest.raises(UserError, match=r"2 grey, 2 colour \(cat.1\.png\).*data\.recolour=true"):
        load(str(tmp_path))
    assert load(str(tmp_path), ImageForm.of("3x8x6", recolour=True)).shape == (3, 8, 6)


def test_an_image_of_another_size_is_named(tmp_path):
    for number in range(3):
        draw(tmp_path / "cat" / f"{number}.png")
        draw(tmp_path / "dog" / f"{number}.png", size=(7, 8) if number == 1 else (6, 8))
    with pytest.raises(UserError, match=r"5 of 6×8, 1 of 7×8 \(dog.1\.png\).*data\.resize=true"):
        load(str(tmp_path))
    assert load(str(tmp_path), ImageForm.of("1x8x6", resize=True)).shape == (1, 8, 6)


def test_a_broken_image_is_named(tmp_path):
    draw(tmp_path / "cat" / "0.png")
    (tmp_path / "cat" / "1.png").write_bytes((tmp_path / "cat" / "0.png").read_bytes()[:-30])
    draw(tmp_path / "dog" / "0.png")
    with pytest.raises(UserError, match=r"cat.1\.png: expected a PNG, JPEG or TIFF image"):
        load(str(tmp_path))


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("1", (4000, 4000)).save(tmp_path / name / "0.png")
    with pytest.raises(UserError, match="expected at most 4194304 pixels"):
        load(str(tmp_path))


def test_folders_that_are_no_dataset(tmp_path):
    with pytest.raises(UserError, match="2 or more classes, found 0"):
        load(str(tmp_path))
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    with pytest.raises(UserError, match="files in its folders, found none"):
        load(str(tmp_path))
    draw(tmp_path / "cat" / "0.png")
    with pytest.raises(UserError, match=r"at least 2 images of class 'cat' .*, found 1"):
        load(str(tmp_path))
