"""Ideal signatures: the simulator itself remembers who signed what.

They are deterministic, and hundreds of times faster than Ed25519. One key is weak: everybody can
sign for it.
"""

from __future__ import annotations

from functools import cache, partial
from hashlib import blake2b

from fedrfq.consensus.roster import Signer

WEAK = bytes(32)


class IdealSignatures:
    """A signature scheme that keeps a table of everything that was signed.

    A party's public key is a hash of its number. A signature is a number given out when the holder
    of a key signs something; any other bytes are not a signature.
    """

    def __init__(self) -> None:
        self._signatures: dict[tuple[bytes, bytes], bytes] = {}

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        return self._signatures.get((key, data)) == signature

    def weak(self, key: bytes) -> bool:
        return key == WEAK

    def key(self, party: int) -> bytes:
        """Return the public key of a server by its number, or of client k by ~k."""
        return _key(party)

    def signer(self, key: bytes) -> Signer:
        """Return what the holder of a key signs with.

        Nothing here checks who asks: it is the simulator that gives each party its own signer only.
        """
        return partial(self._sign, key)

    def _sign(self, key: bytes, data: bytes) -> bytes:
        signature = self._signatures.get((key, data))
        if signature is None:
            signature = b"%064d" % len(self._signatures)
            self._signatures[key, data] = signature
        return signature


@cache
def _key(party: int) -> bytes:
    return blake2b(b"party %d" % party, digest_size=32).digest()
