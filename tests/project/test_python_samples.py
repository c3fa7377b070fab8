"""The Python of the guide and of the README runs as it is printed, block after block.

What readers bring of their own is given here, and runs are made small.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedrfq.data import Dataset
from support.paths import ROOT

# What takes long, and what stands for it.
SMALLER = {
    '"rounds": 20': '"rounds": 1',
    "rounds=20": "rounds=1",
    '"seeds": 2,': '"seeds": 1, "controls": False, "tune": [],',
}
EXPERIMENT = """\
rounds = 2
clients = 2
[partition]
name = "iid"
samples = 40
test_samples = 20
"""


class Net(nn.Sequential):
    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, num_classes))


def run_blocks(page: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks of Python of a page one after the other."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for long, short in SMALLER.items():
        text = text.replace(long, short)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec", dont_inherit=True), given)
    return given


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)


def test_the_guide(mnist: Dataset) -> None:
    two = mnist.train_y < 2
    x, y = mnist.train_x[two][::4], mnist.train_y[two][::4]
    rows = x.reshape(len(x), -1) / 255
    site = np.arange(len(x)) % 3
    given = {
        **{"x": x, "y": y, "test_x": x[::3], "test_y": y[::3], "images": x[:3], "Net": Net},
        **{"X": rows, "site": site, "test_X": rows[::3], "test_site": site[::3]},
    }
    after = run_blocks("docs/guides/python.md", given)
    assert list(after["table"]["method"]) == ["fedproto", "fedrfq"]


def test_the_readme(mnist: Dataset) -> None:
    given = {
        # As many as twenty clients need, of three classes each.
        **{"x": np.repeat(mnist.train_x, 4, 0), "y": np.repeat(mnist.train_y, 4)},
        **{"names": mnist.classes},
        **{"images": mnist.test_x[:3], "MyModule": Net},
    }
    run = run_blocks("README.md", given)["run"]
    assert (run.path / "report.html").is_file()
