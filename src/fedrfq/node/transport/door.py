"""Admits connections whose other end is not identified yet: few in all, and few per address.

When there are too many, the oldest has to go. An honest handshake takes a moment, while whoever
holds a place without using it soon is the oldest. So strangers can delay an honest party, but not
keep it out.
"""

from __future__ import annotations

from collections import defaultdict
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

Guest = TypeVar("Guest")


class Door(Generic[Guest]):
    """The unidentified connections, in the order in which they came."""

    def __init__(self, max_waiting: int, max_per_address: int) -> None:
        self._max_waiting = max_waiting
        self._max_per_address = max_per_address
        # Dicts keep the order of arrival and find a guest at once.
        self._waiting: dict[Guest, str] = {}
        self._by_address: defaultdict[str, dict[Guest, None]] = defaultdict(dict)

    def __contains__(self, guest: Guest) -> bool:
        return guest in self._waiting

    def enter(self, guest: Guest, host: str) -> Guest | None:
        """Let a guest wait; return the one that has to go for it, if any.

        The caller makes that one `leave`.
        """
        address = origin(host)
        self._waiting[guest] = address
        self._by_address[address][guest] = None
        # The address first: a crowd from one place displaces its own.
        if len(self._by_address[address]) > self._max_per_address:
            return next(iter(self._by_address[address]))
        if len(self._waiting) > self._max_waiting:
            return next(iter(self._waiting))
        return None

    def leave(self, guest: Guest) -> None:
        """Forget a guest that was identified or is gone."""
        address = self._waiting.pop(guest, None)
        # A link leaves when it is identified and once more when it closes.
        if address is None:
            return
        del self._by_address[address][guest]
        # Otherwise every address that ever called would stay in memory.
        if not self._by_address[address]:
            del self._by_address[address]


def origin(host: str) -> str:
    """Return what counts as one address.

    For IPv6 that is the /64 network: whoever has one address in it has all 2⁶⁴.
    """
    address = ip_address(host)
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return host
