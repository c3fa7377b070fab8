"""A client's classes are mapped by name: a shifted label can never pass."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from fedrfq.data import Contract, ImageForm, load_agreed
from fedrfq.data.content import Content
from fedrfq.data.library import mapped
from fedrfq.errors import UserError
from fedrfq.files import toml

NAMES = ("bag", "boot", "coat", "dress")
CONTRACT = Contract.of(NAMES, ImageForm.of("1x4x4"))


def brightness(name: str) -> int:
    """Return the one value of all pixels of a class, by which a sample shows what it is."""
    return 10 + 20 * NAMES.index(name)


def draw(folder: Path, name: str, of: str, count: int = 3, size: int = 4) -> None:
    (folder / name).mkdir(parents=True)
    for number in range(count):
        Image.new("L", (size, size), brightness(of)).save(folder / name / f"{number}.png")


def npz(path: Path, labels: list[object], **more: object) -> str:
    """Write an image for each label, and the same ones to test on."""
    images = np.zeros((len(labels), 4, 4), np.uint8)
    parts = {"train_x": images, "test_x": images, "train_y": labels, "test_y": labels}
    np.savez(path, **parts, **more)  # type: ignore[arg-type]
    return str(path)


def test_folders_are_matched_by_name_and_classes_may_be_missing(tmp_path: Path) -> None:
    draw(tmp_path, "dress", "dress")
    draw(tmp_path, "boot", "boot")
    data = load_agreed(str(tmp_path), CONTRACT)
    assert data.classes == NAMES
    assert set(data.train_y.tolist()) == {1, 3}
    assert (data.train_x[:, 0, 0, 0] == [brightness(NAMES[y]) for y in data.train_y]).all()
    assert CONTRACT.missing(data.train_y.tolist()) == ["bag", "coat"]
    # Every client's images are scaled alike, not by their own mean.
    assert (data.mean, data.std) == ((0.5,), (0.25,))


def test_one_class_is_enough(tmp_path: Path) -> None:
    draw(tmp_path, "coat", "coat")
    assert set(load_agreed(str(tmp_path), CONTRACT).train_y.tolist()) == {2}


def test_data_that_are_not_there_are_not_taken_for_a_datasets_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--data: expected the path of your samples, found"):
        load_agreed(str(tmp_path / "scan"), CONTRACT)


def test_another_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    draw(tmp_path, "zbag", "bag")
    draw(tmp_path, "boot", "boot")
    with pytest.raises(UserError, match=r"class 'zbag' is none of .*did you mean bag\?"):
        load_agreed(str(tmp_path), CONTRACT)
    draw(tmp_path, "coats", "coat")
    with pytest.raises(UserError, match=r"2 things are wrong: .*'coats' is none .*'zbag' is none"):
        load_agreed(str(tmp_path), CONTRACT)


def test_a_name_in_another_case_is_refused_with_the_nearest(tmp_path: Path) -> None:
    draw(tmp_path, "BOOT", "boot")
    with pytest.raises(UserError, match=r"class 'BOOT' is none of .*did you mean boot\?"):
        load_agreed(str(tmp_path), CONTRACT)


def test_a_wrong_name_is_found_before_the_pictures_are_read(tmp_path: Path) -> None:
    draw(tmp_path, "boot", "boot", count=1)
    draw(tmp_path, "coats", "coat")
    with pytest.raises(UserError, match="class 'coats' is none"):
        load_agreed(str(tmp_path), CONTRACT)


def test_values_of_which_the_window_leaves_nothing_are_refused(tmp_path: Path) -> None:
    deep = Contract.of(NAMES, ImageForm.of("1x4x4", "0:4095"))
    images = np.linspace(0, 1, 3 * 16).reshape(3, 4, 4)
    labels = ["bag", "boot", "boot"]
    parts = {"train_x": images, "test_x": images, "train_y": labels, "test_y": labels}
    np.savez(tmp_path / "a.npz", **parts)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"window 0:4095, found none.*every pixel would be 0 of"):
        load_agreed(str(tmp_path / "a.npz"), deep)
    # In a window of their own they are as bright as they can be.
    unit = Contract.of(NAMES, ImageForm.of("1x4x4", "0:1"))
    assert load_agreed(str(tmp_path / "a.npz"), unit).train_x.max() == 255


def test_another_size_is_refused_or_resized_as_agreed(tmp_path: Path) -> None:
    draw(tmp_path, "bag", "bag", size=6)
    with pytest.raises(
        UserError, match=r"found 3 of 6×6 .*committee init … --shape 1x4x4 --resize"
    ):
        load_agreed(str(tmp_path), CONTRACT)
    resizing = Contract.of(NAMES, ImageForm.of("1x4x4", resize=True))
    assert load_agreed(str(tmp_path), resizing).shape == (1, 4, 4)


def test_the_names_of_an_npz_are_matched_and_numbers_alone_are_not(tmp_path: Path) -> None:
    # Here 0 is a dress: in the order of the contract it would be a bag.
    own = np.array(["dress", "bag"])
    named = load_agreed(npz(tmp_path / "a.npz", [0, 0, 1], classes=own), CONTRACT)
    assert named.train_y.tolist() == [3, 3, 0]
    texts = load_agreed(npz(tmp_path / "b.npz", ["coat", "boot", "coat"]), CONTRACT)
    assert texts.train_y.tolist() == [2, 1, 2]
    with pytest.raises(UserError, match=r"matched by name: .* add the array `classes`"):
        load_agreed(npz(tmp_path / "c.npz", [0, 1, 2]), CONTRACT)


def test_numbers_are_names_where_the_classes_are_numbers(tmp_path: Path) -> None:
    digits = Contract.of([str(n) for n in range(10)], ImageForm.of("1x4x4"))
    data = load_agreed(npz(tmp_path / "a.npz", [7, 2, 7]), digits)
    assert data.train_y.tolist() == [7, 2, 7]
    with pytest.raises(UserError, match=r"labels from 1 \(1 to 3\).*subtract 1"):
        load_agreed(npz(tmp_path / "c.npz", [1, 2, 3]), digits)
    # A client that names them has no samples of class 0.
    named = load_agreed(npz(tmp_path / "d.npz", [1, 2, 3], classes=["0", "1", "2", "3"]), digits)
    assert named.train_y.tolist() == [1, 2, 3]
    with pytest.raises(UserError, match="class '10' is none"):
        load_agreed(npz(tmp_path / "b.npz", [1, 10]), digits)


def test_a_table_of_labels(tmp_path: Path) -> None:
    draw(tmp_path, "pictures", "boot")
    rows = ["file,label,note", *(f'pictures/{k}.png,boot,"a, b"' for k in range(3))]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    assert set(load_agreed(str(tmp_path), CONTRACT).train_y.tolist()) == {1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "separated by a comma, found ''"),
        ("file;label\n", "separated by a comma, found 'file;label'"),
        ("file,label\n../x.png,bag\n", "name of a file in this folder"),
        ("file,label\n/etc/x.png,bag\n", "name of a file in this folder"),
        ("file,label\na.png,\n", "line 2: expected a label"),
        ("file,label\nx/a.png,bag\nx/a.png,boot\n", "found 'x/a.png' twice"),
        ('file,label\n"a.png,bag\n', "expected a table"),
        ("file,label\nx/a.png,bag\nnone.png,bag\n", "line 3: .* 'none.png', which is not there"),
        ("file,label\n", "a row for each picture, found none"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, text: str, reason: str) -> None:
    draw(tmp_path, "x", "bag")
    (tmp_path / "x" / "0.png").rename(tmp_path / "x" / "a.png")
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UserError, match=reason):
        load_agreed(str(tmp_path), CONTRACT)


def test_a_mark_beside_a_letter_is_the_letter_with_the_mark(tmp_path: Path) -> None:
    cities = Contract.of(["K\u00f6ln", "Ulm"], ImageForm.of("1x4x4"))
    draw(tmp_path, "Ko\u0308ln", "bag")
    assert set(load_agreed(str(tmp_path), cities).train_y.tolist()) == {0}
    draw(tmp_path, "K\u00f6ln", "bag")
    with pytest.raises(UserError, match="two of its class names are the same"):
        load_agreed(str(tmp_path), cities)


def test_whatever_a_client_calls_its_classes_no_label_is_shifted() -> None:
    """Of random names, orders and gaps, each sample keeps its own class, or all are refused."""
    random = Random(20)
    refused = 0
    for _ in range(500):
        agreed = random.sample(["bag", "boot", "coat", "dress", "hat", "0", "1", "é"], 5)
        contract = Contract.of(agreed, ImageForm.of("1x1x1"))
        own = random.sample([*agreed, random.choice(["zbag", "2", "Bag", "bag "])], 4)
        labels = np.array([random.randrange(4) for _ in range(6)])
        images = np.zeros((6, 1, 1, 1), np.uint8)
        content = Content(images, labels, images, labels, tuple(own))
        if set(own) <= set(agreed):
            found = mapped(content, contract, "it")
            assert [agreed[y] for y in found.train_y] == [own[y] for y in labels]
            assert found.test_y.tolist() == found.train_y.tolist()
            continue
        refused += 1
        with pytest.raises(UserError, match="is none of the federation's"):
            mapped(content, contract, "it")
    assert 100 < refused < 500


@pytest.mark.parametrize(
    ("names", "near"),
    [
        (("cat", "dog", "dgo"), ("dog", "dgo")),
        (("cat", "dog", "cats"), ("cat", "cats")),
        (("pneumonia", "healthy", "pneumonla"), ("pneumonia", "pneumonla")),
        (("CAT", "cat"), ("CAT", "cat")),
        (("stage-1", "stage-2", "stage-10"), None),
        (("a", "b", "ab"), None),
        (NAMES, None),
    ],
)
def test_names_of_which_one_may_be_misspelt(
    names: tuple[str, ...], near: tuple[str, str] | None
) -> None:
    assert Contract.of(names, ImageForm.of("1x4x4")).near_names() == near


def test_a_contract_is_read_as_it_is_written() -> None:
    form = ImageForm.of("3x32x24", "-0.5:4095", resize=True, recolour=True)
    contract = Contract.of(["a, b", 'quo"te', "é"], form, mean=0.25)
    text = toml.dump({"contract": contract.table()})
    assert Contract.read(toml.strict(text)["contract"]) == contract


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a"]},
        {"classes": ["a", "a"]},
        {"classes": ["a", "b\n"]},
        {"classes": [1, 2]},
        {"shape": ""},
        {"shape": 5},
        {"window": 5},
        {"resize": "yes"},
        {"mean": 1},
        {"mean": float("nan")},
        {"std": 0.0},
    ],
)
def test_a_contract_that_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((UserError, TypeError)):
        Contract.read(CONTRACT.table() | change)


def test_damaged_files_are_refused_on_one_line(tmp_path: Path) -> None:
    """Of bytes changed at random, nothing but a UserError comes, or sound samples."""
    random = Random(6)
    table = tmp_path / "folder" / "labels.csv"
    draw(table.parent, "pictures", "boot", count=4)
    rows = "".join(f"pictures/{k}.png,boot\n" for k in range(4))
    named = npz(tmp_path / "own.npz", ["bag", "boot", "bag", "boot"])
    originals = {
        table: f"file,label\n{rows}".encode(),
        Path(named): Path(named).read_bytes(),
        table.parent / "pictures" / "0.png": (table.parent / "pictures" / "0.png").read_bytes(),
    }
    refused: list[str] = []
    for number in range(240):
        path, original = list(originals.items())[number % len(originals)]
        data = bytearray(original)
        for _ in range(random.choice([1, 3])):
            data[random.randrange(len(data))] = random.randrange(256)
        table.write_bytes(originals[table])
        path.write_bytes(data)
        whole = named if path == Path(named) else str(table.parent)
        try:
            found = load_agreed(whole, CONTRACT)
            assert set(found.train_y.tolist()) <= {0, 1, 2, 3}
        except UserError as error:
            refused.append(str(error))
        path.write_bytes(original)
    assert len(refused) > 100
    assert not [line for line in refused if "\n" in line]
