"""Ideal signatures: nobody signs for another, by the simulator's word. Deterministic, and hundreds of times faster than
Ed25519; one key is weak, and everybody can sign for it."""

from __future__ import annotations

from functools import cache, partial
from hashlib import blake2b

from fedrfq.consensus.roster import Signer

WEAK = bytes(32)


class IdealSignatures:
    """The public key of a party is a hash of its name. A signature is the number under which the simulator has entered that
    the holder of a key signs something; any other is wrong."""

    def __init__(self) -> None:
        self._signatures: dict[tuple[bytes, bytes], bytes] = {}

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        return self._signatures.get((key, data)) == signature

    def weak(self, key: bytes) -> bool:
        return key == WEAK

    def key(self, party: int) -> bytes:
        """Of a server by its number, of client k by ~k."""
        return _key(party)

    def signer(self, key: bytes) -> Signer:
        """What the holder of this key signs with; a lie keeps to the keys of its own side."""
        return partial(self._sign, key)

    def _sign(self, key: bytes, data: bytes) -> bytes:
        found = self._signatures.get((key, data))
        if found is None:
            found = self._signatures[key, data] = b"%064d" % len(self._signatures)
        return found


@cache
def _key(party: int) -> bytes:
    return blake2b(b"party %d" % party, digest_size=32).digest()
