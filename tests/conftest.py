"""Every test works on a cache folder of its own: the user's data is never touched."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRFQ_DATA", str(tmp_path_factory.mktemp("data")))
        yield
