"""request.toml: what a party tells about itself when it asks to take part.

A request is signed with the party's own key, so nobody can ask for a key that belongs to another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedrfq.errors import UserError
from fedrfq.federation.members import Member
from fedrfq.federation.signatures import Ed25519, Ed25519Signer
from fedrfq.files import toml
from fedrfq.node.membership import certificates

# A certificate is the longest part of a request, and at most about a third of this in base64.
MAX_REQUEST_BYTES = 1 << 14
VERSION = 1
# No message of the protocol begins with this, so a signed request is never taken for one.
_TAG = b"fedrfq request\n"


@dataclass(frozen=True)
class Request:
    """What a party asks to be known as: name, address and certificate, and its key for votes."""

    member: Member
    key: bytes
    signature: bytes = b""
    # A courier carries the uploads of clients, and has none of its own.
    courier: bool = False

    def __post_init__(self) -> None:
        if self.courier and self.member.address:
            raise UserError(
                f"{self.member.name} is a courier and has no address, as it dials the servers: "
                "leave --address out"
            )

    @property
    def role(self) -> str:
        """Return "server", "client" or "courier"; of these only a server has an address."""
        if self.courier:
            return "courier"
        if self.member.address:
            return "server"
        return "client"

    @property
    def is_server(self) -> bool:
        """Return whether the party asks to be a server."""
        return self.role == "server"

    @property
    def text(self) -> str:
        """Return the request as request.toml contains it."""
        return toml.dump({**self._signed_table(), "signature": self.signature.hex()})

    def signed(self, signer: Ed25519Signer) -> Request:
        """Return the request with a signature by the party's own key."""
        return replace(self, signature=signer(self._signed_bytes()))

    def check(self) -> None:
        """Raise a UserError unless the key's owner signed it and the certificate can be pinned."""
        name = self.member.name
        scheme = Ed25519()
        if scheme.weak(self.key):
            raise UserError(
                f"the key of {name} is weak, so others could sign in its name: "
                "make a new one with `fedrfq keys new`"
            )
        if not scheme.verify(self.key, self._signed_bytes(), self.signature):
            raise UserError(
                f"the request of {name} is not signed by its own key: ask {name} for it again"
            )
        certificates.check(self.member.certificate, name)

    @staticmethod
    def read(text: str, where: str) -> Request:
        """Parse and check the text of a request.toml, which errors call `where`.

        The text must be exactly what this program writes, so that a request has only one form.
        """
        try:
            table = toml.strict(text)
            key = bytes.fromhex(table["key"])
            signature = bytes.fromhex(table["signature"])
            request = Request(Member.of(table), key, signature, table["role"] == "courier")
            if request.text != text:
                raise ValueError("it is not as this program writes it")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{where} is not the request of a party ({error!r}): "
                "make one with `fedrfq keys new`"
            ) from error
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        request.check()
        return request

    def _signed_table(self) -> dict[str, Any]:
        return {"version": VERSION, "role": self.role, **self.member.row(self.key)}

    def _signed_bytes(self) -> bytes:
        return _TAG + toml.dump(self._signed_table()).encode()
