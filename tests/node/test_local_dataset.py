"""A client's own samples, split where they are not yet, and what one more of them changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedrfq.data import Contract, Dataset, ImageForm
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.node import local_dataset
from support.small import tiny

NOISY = tiny(
    method={"name": "local"},
    public={"name": "random", "first": 8, "second": 4},
    privacy={"noise": 2.0},
    data={"name": "contract"},
)
CONTRACT = Contract.of([str(number) for number in range(10)], ImageForm.of("1x28x28"))
# Added one after the other, these change the split by counts several times.
FEW, MANY = 7, 24


def add(dataset: Dataset, folder: Path, number: int) -> None:
    """Add a picture of the digit 3 to a client's folder."""
    image = dataset.train_x[dataset.train_y == 3][number, 0]
    # The training samples here are those whose hashes are large: so was the dataset split.
    if number % 5 == 0:
        image = dataset.test_x[dataset.test_y == 3][number, 0]
    (folder / "3").mkdir(exist_ok=True)
    Image.fromarray(image).save(folder / "3" / f"{number:02d}.png")


def trained_on(found: Experiment, folder: Path) -> set[bytes]:
    local = local_dataset.find(found, 0, 10, str(folder), CONTRACT)
    return {image.tobytes() for image in local.dataset.train_x[local.partition.train[0]]}


def test_one_more_sample_changes_no_other_where_noise_hides_it(
    mnist: Dataset, tmp_path: Path
) -> None:
    """ε is of one sample added or removed, and a split by counts would swap others with it."""
    for number in range(FEW):
        add(mnist, tmp_path, number)
    before = trained_on(NOISY, tmp_path)
    tested = 0
    for number in range(FEW, MANY):
        add(mnist, tmp_path, number)
        after = trained_on(NOISY, tmp_path)
        assert before <= after
        assert len(after - before) <= 1
        tested += after == before
        before = after
    assert 0 < tested < MANY - FEW


def test_without_noise_a_fixed_fifth_is_tested_on(mnist: Dataset, tmp_path: Path) -> None:
    found = tiny(data={"name": "contract"})
    for number in range(20):
        add(mnist, tmp_path, number)
    assert len(trained_on(found, tmp_path)) == 16


def test_pictures_that_all_fall_into_one_part_are_refused(mnist: Dataset, tmp_path: Path) -> None:
    add(mnist, tmp_path, 0)
    with pytest.raises(UserError, match="of 1 there is none to train on; add some, or split them"):
        trained_on(NOISY, tmp_path)
