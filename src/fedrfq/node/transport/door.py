"""Connections whose other end has not yet shown who it is: few, and few from one address.

Where there are too many, the oldest has to go. An honest handshake is over in a moment; who holds a place open without
using it is the oldest soon, so that strangers can delay a party that comes, but not shut it out.
"""

from __future__ import annotations

from collections import defaultdict
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

Guest = TypeVar("Guest")


class Door(Generic[Guest]):
    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._waiting: dict[Guest, str] = {}  # in the order of their coming, with the address
        self._by_address: defaultdict[str, dict[Guest, None]] = defaultdict(dict)

    def __contains__(self, guest: Guest) -> bool:
        return guest in self._waiting

    def enter(self, guest: Guest, host: str) -> Guest | None:
        """Wait here; who has to go for it, if anybody. It is for the caller to make it `leave`."""
        address = origin(host)
        self._waiting[guest] = address
        self._by_address[address][guest] = None
        if len(self._by_address[address]) > self._most_per_address:
            return next(iter(self._by_address[address]))
        if len(self._waiting) > self._most:
            return next(iter(self._waiting))
        return None

    def leave(self, guest: Guest) -> None:
        """Identified, or gone."""
        address = self._waiting.pop(guest, None)
        if address is not None:
            del self._by_address[address][guest]
            if not self._by_address[address]:
                del self._by_address[address]


def origin(host: str) -> str:
    """What counts as one address: of IPv6 the network, since whoever has one address there has 2⁶⁴."""
    address = ip_address(host)
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return host
