"""Ed25519: signatures are checked, and keys that others could sign for are weak."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrfq.consensus.roster import Roster
from fedrfq.errors import UserError
from fedrfq.federation import signatures
from fedrfq.federation.signatures import Ed25519, Ed25519Signer, simulated

SCHEME = Ed25519()
P = 2**255 - 19
# All points of order 1, 2, 4 and 8, and their other encodings: RFC 8032 allows one each, but some
# libraries accept more.
SMALL_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def signed_bit(encoding: str) -> str:
    raw = bytearray.fromhex(encoding)
    raw[31] |= 0x80
    return raw.hex()


@pytest.mark.parametrize("encoding", [*SMALL_ORDER, *map(signed_bit, SMALL_ORDER)])
def test_keys_of_small_order_are_weak_and_no_roster_takes_them(encoding: str) -> None:
    key = bytes.fromhex(encoding)
    assert SCHEME.weak(key)
    servers = tuple(simulated(0, "server", k).public for k in range(3))
    with pytest.raises(UserError, match="server 3 is weak"):
        Roster(SCHEME, (*servers, key), (simulated(0, "client", 0).public,))


def test_other_than_canonical_points_are_weak() -> None:
    assert not any(SCHEME.weak(simulated(seed, "server", 0).public) for seed in range(50))
    for y in (P, P + 1, 2**255 - 1, 2):  # beyond the field; 2 is no point's
        assert SCHEME.weak(y.to_bytes(32, "little"))
    for length in (0, 31, 33, 64):
        assert SCHEME.weak(bytes(length))


@given(st.binary(max_size=300), st.integers(0, 10), st.data())
@settings(max_examples=60, deadline=None)
def test_a_signature_holds_for_its_key_and_bytes_only(
    message: bytes, seed: int, data: st.DataObject
) -> None:
    signer = Ed25519Signer(bytes([seed]) * 32)
    other = Ed25519Signer(bytes([seed + 1]) * 32)
    signature = signer(message)
    # As in another process, which has to check it.
    signatures._valid.clear()
    assert SCHEME.verify(signer.public, message, signature)
    assert not SCHEME.verify(other.public, message, signature)
    assert not SCHEME.verify(signer.public, message + b"\0", signature)
    flipped = bytearray(signature)
    flipped[data.draw(st.integers(0, 63))] ^= 1 << data.draw(st.integers(0, 7))
    assert not SCHEME.verify(signer.public, message, bytes(flipped))


def test_what_was_found_right_before_is_right_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signatures, "_MAX_REMEMBERED", 3)
    for number in range(5):
        signer = Ed25519Signer(bytes([number]) * 32)
        other = Ed25519Signer(bytes([number + 1]) * 32)
        signature = signer(b"message")
        signatures._valid.clear()
        for _ in range(2):
            assert SCHEME.verify(signer.public, b"message", signature)
            assert not SCHEME.verify(signer.public, b"another", signature)
            assert not SCHEME.verify(other.public, b"message", signature)
        assert len(signatures._valid) <= 3


def test_what_this_process_has_signed_is_known_to_be_right_and_that_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server finds its own list in every proposal; what others signed is checked."""
    checked = list[bytes]()
    monkeypatch.setattr(
        signatures, "_opener", lambda: lambda signed, key: checked.append(signed) is not None
    )
    own = Ed25519Signer(bytes(range(32)))
    other = Ed25519Signer(bytes(32))
    signature = own(b"message")
    assert SCHEME.verify(own.public, b"message", signature)
    assert not checked
    assert not SCHEME.verify(own.public, b"another", signature)
    assert not SCHEME.verify(other.public, b"message", signature)
    assert len(checked) == 2


def test_a_signature_moved_by_the_group_order_is_refused() -> None:
    """S and S + L would both verify if S were not checked to be canonical.

    That would be the same vote with other bytes.
    """
    order = 2**252 + 27742317777372353535851937790883648493
    signer = simulated(0, "server", 0)
    signature = signer(b"vote")
    moved = signature[:32] + (int.from_bytes(signature[32:], "little") + order).to_bytes(
        32, "little"
    )
    assert not SCHEME.verify(signer.public, b"vote", moved)


@pytest.mark.parametrize(
    ("key", "signature"), [(31, 64), (33, 64), (0, 0), (32, 63), (32, 65), (32, 0)]
)
def test_wrong_lengths_are_no_signatures(key: int, signature: int) -> None:
    assert not SCHEME.verify(bytes(key), b"", bytes(signature))


def test_nobody_signs_for_the_neutral_point() -> None:
    """With the key 1 (the neutral element), R = S·B and S = 0 would hold for every message."""
    neutral = bytes.fromhex(SMALL_ORDER[1])
    assert not SCHEME.verify(neutral, b"anything", neutral + bytes(32))


def test_simulated_keys_are_a_function_of_seed_role_and_number() -> None:
    assert simulated(3, "server", 1).public == simulated(3, "server", 1).public
    parties = [
        (seed, role, k) for seed in range(4) for role in ("server", "client") for k in range(12)
    ]
    assert len({simulated(*party).public for party in parties}) == len(parties)
    assert Ed25519Signer(bytes(32)).public == bytes.fromhex(
        "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
    )
    with pytest.raises(UserError, match="32 bytes"):
        Ed25519Signer(bytes(31))


def test_without_pynacl_one_is_told_so() -> None:
    script = """
import sys
sys.modules["nacl"] = None
from fedrfq.errors import UserError
from fedrfq.federation.signatures import Ed25519
try:
    Ed25519()
except UserError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "PyNaCl" in done.stdout
    assert "direct" in done.stdout
