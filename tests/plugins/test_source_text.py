"""The source of what was typed into a notebook's cells, as far as it can be found."""

from __future__ import annotations

from typing import Any

import pytest

from fedrfq.plugins.source_text import source_of, text_around
from support.outside import typed

DOING = "@(lambda cls: cls)\nclass Doing:\n    def do(self):\n        return {}\n"


def test_a_class_has_the_text_of_its_own_cell() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    typed(f"{DOING.format(1)}\nother = 1\n", scope)
    first = scope["Doing"]
    typed(DOING.format(2), scope)
    assert source_of(first) == DOING.format(1)
    assert source_of(scope["Doing"]) == DOING.format(2)
    assert text_around(first) == ("the notebook's cell", f"{DOING.format(1)}\nother = 1\n")


def test_a_class_without_functions_has_that_of_the_newest_cell_that_is_python() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    for size in (1, 2):
        typed(f"class Plain:\n    size = {size}\n", scope)
    with pytest.raises(SyntaxError):
        typed("class Plain: no Python", scope)
    assert source_of(scope["Plain"]) == "class Plain:\n    size = 2\n"


@pytest.mark.parametrize("thing", [type("Made", (), {}), 3])
def test_what_was_never_typed_has_no_source(thing: object) -> None:
    with pytest.raises(OSError, match="there is no source"):
        source_of(thing)
    assert text_around(type(thing)) == ("", "")
