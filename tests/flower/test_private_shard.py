"""Noise on Flower: drawn once, the same after a lost answer, and no ε, as nodes report more."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedrfq.consensus.messages import Upload, decode
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.flower.committee_gateway import check_experiment
from fedrfq.flower.messages import NodeAnswer
from fedrfq.privacy.drawn_uploads import FOLDER
from fedrfq.runs import privacy_record
from support.flowered import experiment, node_of, order, sent_to

PRIVATE = {
    "clients": 2,
    "method": {"name": "local"},
    "public": {"name": "random", "first": 8, "second": 4},
    "privacy": {"noise": 2.0},
}


def contents(answer: NodeAnswer) -> list[bytes]:
    assert not answer.error
    bodies = [decode(upload).body for upload in answer.uploads]
    return [body.content for body in bodies if isinstance(body, Upload)]


def test_a_node_that_lost_its_answer_draws_nothing_again(mnist: Dataset, tmp_path: Path) -> None:
    """It was killed after noise was drawn, and before its state was written."""
    e = experiment(**PRIVATE)
    asked = order(e, 0, b"", True, tmp_path)
    first = contents(sent_to(0, 1, asked))
    assert len(first) == 2
    folder = node_of(0, 1, asked).state.folder
    assert len(list((folder / FOLDER).iterdir())) == 2
    (folder / "kept.safetensors").unlink()
    assert contents(sent_to(0, 1, asked)) == first


def test_no_epsilon_is_claimed_and_no_budget_kept() -> None:
    e = experiment(**PRIVATE)
    check_experiment(e)
    (made, _) = privacy_record.without_epsilon(e, 3, privacy_record.ON_FLOWER)
    assert (made.uploads, made.epsilon) == (1, None)
    assert "reports its clients' losses and accuracies" in str(made)
    budget = experiment(**{**PRIVATE, "privacy": {"noise": 2.0, "budget": 2.0}})
    with pytest.raises(UserError, match=r"privacy.budget cannot be kept, since there is no ε"):
        check_experiment(budget)
    plain = experiment(**{**PRIVATE, "privacy": {}})
    assert privacy_record.without_epsilon(plain, 3, "") == []


def test_training_with_noise_is_refused() -> None:
    """Nodes report losses of the samples, whatever noise there is in the models."""
    noisy = experiment(**{**PRIVATE, "train": {"dp_noise": 1.0}})
    with pytest.raises(UserError, match=r"train\.dp_noise gives no ε here"):
        check_experiment(noisy)
