"""Ed25519 signatures, made and checked by PyNaCl everywhere.

Libraries disagree on edge cases of Ed25519, and servers must not. PyNaCl is needed only here, and
is imported only once something is signed or checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

from fedrfq.errors import UserError

KEY = 32  # bytes
SIGNATURE = 64  # bytes
# Signatures that are remembered: a server finds its own list in every proposal, and many simulated
# servers check the same ones in one process.
_MAX_REMEMBERED = 1 << 12


class Ed25519:
    """The signature scheme of a committee's roster."""

    def __init__(self) -> None:
        _require_pynacl()

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        """Return whether this is the key's signature of the data."""
        return _verify(key, data, signature)

    def weak(self, key: bytes) -> bool:
        """Return whether a key is anything but the canonical encoding of a point of prime order.

        Anyone can sign for a key of small order, and libraries disagree on the other odd ones.
        """
        from nacl.bindings import crypto_core_ed25519_is_valid_point

        return len(key) != KEY or not crypto_core_ed25519_is_valid_point(key)


class Ed25519Signer:
    """A private key, made from its seed of 32 bytes. Calling it with data signs them.

    Its own signatures need no check in this process.
    """

    def __init__(self, seed: bytes) -> None:
        _require_pynacl()
        from nacl.signing import SigningKey

        if len(seed) != KEY:
            raise UserError(f"the seed of a private key must have {KEY} bytes, not {len(seed)}")
        self._key = SigningKey(seed)
        self.public = bytes(self._key.verify_key)

    @property
    def seed(self) -> bytes:
        """The secret itself, for a TLS certificate, which another library has to sign."""
        return bytes(self._key)

    def __call__(self, data: bytes) -> bytes:
        signature = self._key.sign(data).signature
        _remember(self.public, data, signature)
        return signature


def simulated(seed: int, role: str, number: int) -> Ed25519Signer:
    """Return a party's signer in a simulated committee.

    The key follows from the run's seed, so that a run repeats itself to the byte. Anyone who
    knows the seed can sign for everyone: never use such keys for real servers.
    """
    text = f"fedrfq-1 simulated key, seed {seed}, {role} {number}"
    return Ed25519Signer(hashlib.sha256(text.encode()).digest())


# Valid signatures, each with its key and data. Looking one up by the signature hashes 64 bytes,
# where the data may be long.
_valid: dict[bytes, tuple[bytes, bytes]] = {}


def _verify(key: bytes, data: bytes, signature: bytes) -> bool:
    if _valid.get(signature) == (key, data):
        return True
    if len(key) != KEY or len(signature) != SIGNATURE or not _opener()(signature + data, key):
        return False
    _remember(key, data, signature)
    return True


def _remember(key: bytes, data: bytes, signature: bytes) -> None:
    if len(_valid) >= _MAX_REMEMBERED:
        _valid.clear()
    _valid[signature] = key, data


@cache
def _opener() -> Callable[[bytes, bytes], bool]:
    """Return a function that says whether a signature, followed by what is signed, is a key's.

    It calls libsodium directly. PyNaCl's VerifyKey adds nothing but checks of lengths, and this is
    done for every message.
    """
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    def opens(signed: bytes, key: bytes) -> bool:
        try:
            crypto_sign_open(signed, key)
        except BadSignatureError:
            return False
        return True

    return opens


def _require_pynacl() -> None:
    try:
        import nacl.signing  # noqa: F401
    except ImportError as error:
        raise UserError(
            "signatures need PyNaCl: install it with `pip install pynacl`, or set"
            ' committee.name = "direct"'
        ) from error
