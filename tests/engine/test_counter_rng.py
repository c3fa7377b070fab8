"""Randomness as a function: SplitMix64 to the bit, fair orders, and independent streams."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fedrfq.engine import counter_rng
from fedrfq.engine.counter_rng import Purpose

WORD = 2**64 - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator as Steele, Lea and Flood published it (2014), on Python's integers."""
    return [mix((seed + i * 0x9E3779B97F4A7C15) & WORD) for i in range(1, count + 1)]


def key(*parts: int) -> int:
    state = 0
    for part in parts:
        state = mix((state * 0x94D049BB133111EB + part + 0x9E3779B97F4A7C15) & WORD)
    return state


def unsigned(words: torch.Tensor) -> list[int]:
    return [word & WORD for word in words.tolist()]


def keys(clients: int = 5, seed: int = 0, round_: int = 1) -> torch.Tensor:
    return counter_rng.key(seed, torch.arange(clients), round_)


def test_the_python_twin_is_splitmix64() -> None:
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(0, 1) == [0xE220A8397B1DCDAF]


@pytest.mark.parametrize("parts", [(0,), (1, 2, 3), (2**63, 5), (2**64 - 1, 2**40, 0), (3, 2, 1)])
def test_keys_are_the_twins(parts: tuple[int, ...]) -> None:
    assert unsigned(counter_rng.key(*parts)[None]) == [key(*parts)]
    assert counter_rng.integer(*parts) == key(*parts) & (2**63 - 1)


@pytest.mark.parametrize("purpose", Purpose)
def test_bits_are_the_twins(purpose: Purpose) -> None:
    found = counter_rng.bits(keys(3, seed=9, round_=4), purpose, 50, salt=2)
    for client in range(3):
        assert unsigned(found[client]) == splitmix64(key(key(9, client, 4), int(purpose), 2), 50)


def test_uniform_numbers_are_the_words_halves() -> None:
    words = splitmix64(key(key(0, 0, 1), int(Purpose.DROPOUT), 0), 2)
    expected = [words[0] >> 40, (words[0] >> 8) & 0xFFFFFF, words[1] >> 40]
    found = counter_rng.uniform(keys(1), Purpose.DROPOUT, 3)
    assert (found[0].double() * 2**24).tolist() == expected


def test_a_client_has_the_same_bits_in_any_company() -> None:
    together = keys(5)
    counts = torch.tensor([5, 9, 12, 3, 1])
    orders = counter_rng.order(together, counts, 12, salt=1)
    for k in range(5):
        alone = counter_rng.key(0, torch.tensor([k]), 1)
        assert torch.equal(alone, together[[k]])
        for make in (counter_rng.bits, counter_rng.uniform):
            assert torch.equal(
                make(alone, Purpose.DROPOUT, 31), make(together, Purpose.DROPOUT, 40)[[k], :31]
            )
        count = int(counts[k])
        assert torch.equal(
            counter_rng.order(alone, counts[[k]], count, salt=1)[0], orders[k, :count]
        )
        assert torch.equal(
            counter_rng.order(alone, counts[[k]], 40, salt=1)[0, :count], orders[k, :count]
        )


def test_an_order_is_a_permutation_and_then_padding() -> None:
    counts = torch.tensor([5, 9, 12, 0, 1])
    orders = counter_rng.order(keys(5), counts, 12)
    for order, count in zip(orders.tolist(), counts.tolist(), strict=True):
        assert sorted(order[:count]) == list(range(count))
        assert order[count:] == list(range(count, 12))


def test_orders_are_fair() -> None:
    """Each of 4 samples comes at each of 4 places equally often, and so does each of the 24 orders.

    χ² has 9 and 23 degrees of freedom.
    """
    clients = 24_000
    orders = counter_rng.order(keys(clients), torch.full((clients,), 4), 6)[:, :4]
    places = torch.stack([(orders == sample).sum(0) for sample in range(4)])
    assert (places - clients / 4).square().sum() / (clients / 4) < 30
    codes = (orders * torch.tensor([64, 16, 4, 1])).sum(1).bincount()
    seen = codes[codes > 0]
    assert len(seen) == 24
    assert (seen - 1000).square().sum() / 1000 < 55


def test_uniform_numbers_are_uniform() -> None:
    drawn = counter_rng.uniform(keys(4), Purpose.DROPOUT, 50_001)
    assert drawn.dtype == torch.float32
    assert drawn.shape == (4, 50_001)
    assert 0 <= drawn.min() < 0.001
    assert 0.999 < drawn.max() < 1
    for row in drawn:
        assert row.mean().item() == pytest.approx(0.5, abs=0.005)
        assert row.var().item() == pytest.approx(1 / 12, abs=0.002)
        for a, b in pairwise(
            (row[:-1:2], row[1::2], row[2::2])
        ):  # the halves of a word, and one word and the next
            assert abs(torch.corrcoef(torch.stack([a[:24_000], b[:24_000]]))[0, 1]) < 0.025


def test_streams_have_nothing_in_common() -> None:
    """Another seed, client, round, purpose or salt: another stream."""
    streams = [
        *counter_rng.bits(keys(3), Purpose.ORDER, 20).tolist(),
        *counter_rng.bits(keys(3, seed=1), Purpose.ORDER, 20).tolist(),
        *counter_rng.bits(keys(3, round_=2), Purpose.ORDER, 20).tolist(),
        *(
            counter_rng.bits(keys(3), purpose, 20)[0].tolist()
            for purpose in Purpose
            if purpose != Purpose.ORDER
        ),
        *(counter_rng.bits(keys(3), Purpose.ORDER, 20, salt)[0].tolist() for salt in (1, 2, 3)),
    ]
    assert len({word for stream in streams for word in stream}) == 20 * len(streams)


def test_position_counts_in_a_key() -> None:
    found = {
        counter_rng.integer(*parts)
        for parts in [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), (0,), ()]
    }
    assert len(found) == 7


def test_purposes_keep_their_numbers() -> None:
    """A number changed or given away would silently change every run's randomness."""
    expected = {
        "START": 1,
        "PARTITION": 2,
        "ORDER": 3,
        "DROPOUT": 4,
        "AUGMENT": 5,
        "PARTICIPATION": 6,
    }
    assert {p.name: int(p) for p in Purpose}.items() >= expected.items()
    assert len(Purpose.__members__) == len(set(Purpose))
