"""Ed25519 signatures, by PyNaCl everywhere: libraries disagree on edge cases, and servers may not.

PyNaCl is needed only here, and only once something is signed or checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

from fedrfq.errors import UserError

# bytes
KEY = 32
SIGNATURE = 64
_REMEMBERED = (
    1 << 12
)  # signatures; what many simulated servers check in one process is computed once


class Ed25519:
    """The scheme of a committee's roster."""

    def __init__(self) -> None:
        _require()

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        return _verified(key, data, signature)

    def weak(self, key: bytes) -> bool:
        """Not the one encoding of a point of the large prime order: of small order, mixed, or no point at all."""
        from nacl.bindings import crypto_core_ed25519_is_valid_point

        return len(key) != KEY or not crypto_core_ed25519_is_valid_point(key)


class Ed25519Signer:
    """A private key, from its seed of 32 bytes; called with data it signs them."""

    def __init__(self, seed: bytes) -> None:
        _require()
        from nacl.signing import SigningKey

        if len(seed) != KEY:
            raise UserError(f"a private key's seed has {KEY} bytes, this one {len(seed)}")
        self._key = SigningKey(seed)
        self.public = bytes(self._key.verify_key)

    def __call__(self, data: bytes) -> bytes:
        return self._key.sign(data).signature


class _Known(Ed25519Signer):
    """Those who check what it signs are simulated in the same process: it is known to be right."""

    def __call__(self, data: bytes) -> bytes:
        signature = super().__call__(data)
        _remember(self.public, data, signature)
        return signature


def simulated(seed: int, role: str, number: int) -> Ed25519Signer:
    """A party's key in a simulated committee: a function of the run's seed, so that a run repeats itself to the byte. Whoever
    knows the seed can sign for everyone: never for real servers."""
    return _Known(
        hashlib.sha256(f"fedrfq-1 simulated key, seed {seed}, {role} {number}".encode()).digest()
    )


_right: dict[bytes, tuple[bytes, bytes]] = {}  # signatures found right, whose and of what


def _verified(key: bytes, data: bytes, signature: bytes) -> bool:
    """By the signature alone it is soon found whether this is known: what is signed may be long."""
    if _right.get(signature) == (key, data):
        return True
    if len(key) != KEY or len(signature) != SIGNATURE or not _opener()(signature + data, key):
        return False
    _remember(key, data, signature)
    return True


def _remember(key: bytes, data: bytes, signature: bytes) -> None:
    if len(_right) >= _REMEMBERED:
        _right.clear()
    _right[signature] = key, data


@cache
def _opener() -> Callable[[bytes, bytes], bool]:
    """Whether a signature, with what is signed after it, is this key's. What libsodium itself takes: VerifyKey adds nothing
    but checks of lengths, and this is done for every message."""
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    def opens(signed: bytes, key: bytes) -> bool:
        try:
            crypto_sign_open(signed, key)
        except BadSignatureError:
            return False
        return True

    return opens


def _require() -> None:
    try:
        import nacl.signing  # noqa: F401
    except ImportError as error:
        raise UserError(
            'signatures need PyNaCl: `pip install pynacl`, or set committee.name = "direct"'
        ) from error
