"""Receipts: one per upload, few per client, and not all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedrfq.consensus.events import Send
from fedrfq.consensus.messages import Receipt
from fedrfq.consensus.rules import Rules
from fedrfq.node.driver.receipts import CLIENTS_PER_TURN, MAX_PER_ROUND, Receipts
from support.cluster import key, roster, signer

RULES = Rules(roster())


def receipt(client: int, round_: int = 1, upload: int = 0) -> Send:
    body = Receipt(round_, 0, client, bytes([upload]) * 32)
    return Send(~client, RULES.signed(body, signer(key("server", 0))))


def given(
    *owed: Send, turns: int = 20, then: Callable[[Receipts], None] = lambda receipts: None
) -> list[int]:
    """Return who got receipts, so many turns of the loop after the first was due."""

    async def test() -> list[int]:
        to: list[int] = []
        receipts = Receipts(lambda party, data: to.append(party), 0.0)
        for each in owed:
            receipts.owe(each)
        then(receipts)
        for _ in range(1000):
            if not to:
                await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        receipts.drop()
        return to

    return asyncio.run(test())


def test_an_upload_that_is_repeated_gets_one() -> None:
    assert given(receipt(0), receipt(0), receipt(1), receipt(0)) == [~0, ~1]


def test_a_client_gets_so_many_a_round() -> None:
    many = [receipt(0, round_, upload) for round_ in (1, 2) for upload in range(MAX_PER_ROUND + 3)]
    assert given(*many) == [~0] * 2 * MAX_PER_ROUND


def test_others_have_their_turn_in_between() -> None:
    owed = [receipt(client) for client in range(3 * CLIENTS_PER_TURN)]
    assert [len(given(*owed, turns=turns)) for turns in (0, 1, 2)] == [
        CLIENTS_PER_TURN,
        2 * CLIENTS_PER_TURN,
        3 * CLIENTS_PER_TURN,
    ]
    assert len(given(*owed)) == len(owed)


def test_of_a_round_that_is_decided_none_is_given_and_later_ones_are() -> None:
    assert given(receipt(0), receipt(1, 2), then=lambda receipts: receipts.decided(1)) == [~1]
    assert given(receipt(0), then=lambda receipts: receipts.decided(1)) == []
