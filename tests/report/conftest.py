"""One browser for all tests of pages."""

import pytest

from support.browser import CHROMIUM, browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def tab(chromium):
    chromium.errors.clear()
    chromium.asked.clear()
    yield chromium
    # A page that follows something would ask for it during the next test.
    chromium.call("Page.navigate", url="about:blank")
