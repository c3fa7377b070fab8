"""The public task: its rounds, its table in federation.toml, and its statistics as bytes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrfq.committee import Simulated
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.public_task import PublicTask
from fedrfq.node.transport.budget import client_pace, server_pace
from fedrfq.prototypes.fixed_point import Globals, Precision
from support.committees import PUBLIC, some_settings


def federation(public: PublicTask | None) -> Federation:
    return Simulated().federation(some_settings(public=public))


def test_the_rounds_in_which_statistics_are_exchanged() -> None:
    once = replace(PUBLIC, every=0)
    assert [round_ for round_ in range(1, 12) if once.due(round_)] == [1]
    assert [round_ for round_ in range(1, 12) if PUBLIC.due(round_)] == [1, 4, 7, 10]
    assert all(replace(PUBLIC, every=1).due(round_) for round_ in range(1, 5))


def test_the_file_names_it_and_is_as_before_without() -> None:
    text = federation(PUBLIC).text
    table = (
        '[public]\nmap = "random:1"\nnorm = 2.0\nclasses = 3\nmoments = 2\nvalues = 5\nevery = 3\n'
        "bits = 6\n"
    )
    assert table in text
    assert text.replace("\n" + table, "") == federation(None).text
    assert Federation.read(text, "here").task.public == PUBLIC
    assert federation(PUBLIC).roster.run != federation(None).roster.run


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('map = "random:1"', 'map = "Random 1"'),
        ('map = "random:1"', 'map = ""'),
        ('map = "random:1"', "map = 1"),
        ("norm = 2.0", "norm = 2"),
        ("norm = 2.0", "norm = 0.0"),
        ("norm = 2.0", "norm = nan"),
        ("norm = 2.0", "norm = inf"),
        ("classes = 3\nmoments", "classes = 2\nmoments"),
        ("moments = 2", "moments = -1"),
        ("moments = 2", "moments = true"),
        ("moments = 2", "moments = 65535"),
        ("values = 5\nevery", "values = 65536\nevery"),
        ("every = 3", "every = -1"),
        ("every = 3", "every = 3\nmore = 1"),
        ("every = 3\n", ""),
        ("every = 3\n", "every = 3\nrevocable = false\n"),
        ("every = 3\n", "every = 3\nrevocable = 1\n"),
        ("bits = 6", "bits = 3"),
        ("bits = 6", "bits = 6.0"),
    ],
)
def test_another_table_is_refused(old: str, new: str) -> None:
    text = federation(PUBLIC).text
    assert text.count(old) == 1
    with pytest.raises(UserError, match="here"):
        Federation.read(text.replace(old, new), "here")


def test_a_federation_whose_statistics_can_be_taken_back_says_so() -> None:
    revocable = replace(PUBLIC, revocable=True)
    text = federation(revocable).text
    assert text.replace("revocable = true\n", "") == federation(PUBLIC).text
    assert Federation.read(text, "here").task.public == revocable


def test_no_more_values_than_servers_can_hold() -> None:
    with pytest.raises(UserError, match="16777216 values in all"):
        replace(PUBLIC, moments=1000, values=30_000)


def test_frames_have_room_for_the_longest_upload_and_no_more() -> None:
    large = replace(PUBLIC, moments=300, values=2_000, precision=Precision(12))
    few = client_pace(federation(None)).frame_bytes
    more = client_pace(federation(large)).frame_bytes
    longest = 18 + 303 * (6 + 3_000)
    assert more == longest + 4096
    assert server_pace(federation(large)).frame_bytes > 2 * longest
    assert client_pace(federation(PUBLIC)).frame_bytes < few + 200


# As bytes

ROWS = st.lists(st.booleans(), min_size=5, max_size=5)


@settings(deadline=None)
@given(st.integers(4, 24), ROWS, st.integers(0, 2**32 - 1))
def test_statistics_come_back(bits: int, present: list[bool], seed: int) -> None:
    task = replace(PUBLIC, precision=Precision(bits))
    rng = np.random.default_rng(seed)
    most = task.precision.most
    present_J = np.array(present)
    steps_JV = rng.integers(-most, most + 1, (5, 5)) * present_J[:, None]
    content = codec.encode_public(Globals(present_J, steps_JV * task.precision.step), task)
    back = codec.decode_public(content, task)
    if not any(present):
        assert (content, back) == (b"", None)
        return
    assert back is not None
    assert np.array_equal(back.present_J, present_J)
    assert np.array_equal(back.values_JV, steps_JV * task.precision.step)
    assert len(content) == 18 + sum(present) * (6 + -(-5 * bits // 8))


WHOLE = codec.encode_public(Globals(np.ones(5, np.bool_), np.zeros((5, 5), np.int64)), PUBLIC)


@settings(deadline=None, max_examples=200)
@given(
    st.binary(max_size=80)
    | st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)).map(
        lambda change: WHOLE[: change[0]] + bytes([change[1]]) + WHOLE[change[0] + 1 :]
    )
)
def test_any_bytes_are_refused_or_are_what_would_be_written(content: bytes) -> None:
    with suppress(Refused):
        found = codec.decode_public(content, PUBLIC) or PUBLIC.nothing()
        assert codec.encode_public(found, PUBLIC) == content


def test_statistics_of_a_federation_without_a_map_are_refused() -> None:
    assert codec.decode_public(b"", None) is None
    with pytest.raises(Refused, match="no public feature map"):
        codec.decode_public(WHOLE, None)


def test_every_field_is_in_the_file() -> None:
    """A field that the file did not name could differ between servers."""
    text = federation(replace(PUBLIC, revocable=True)).text
    names = {field.name for field in fields(PUBLIC)} - {"precision", "privacy"} | {"bits"}
    section = text.split("[public]\n")[1].split("\n\n")[0]
    assert {line.split(" = ")[0] for line in section.splitlines()} == names
