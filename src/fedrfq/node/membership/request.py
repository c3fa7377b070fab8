"""request.toml: what a party makes known of itself to take part. It is signed with its own key, so nobody can ask for a key
that is another's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedrfq.errors import UserError
from fedrfq.federation.members import Member
from fedrfq.federation.signatures import Ed25519, Ed25519Signer
from fedrfq.files import toml
from fedrfq.node.membership import certificates

MOST = 1 << 14  # bytes
VERSION = 1
_TAG = b"fedrfq request\n"  # no message of the protocol begins with it


@dataclass(frozen=True)
class Request:
    member: Member
    key: bytes  # for votes
    signature: bytes = b""
    courier: bool = False  # it asks to carry others' uploads, and to have none itself

    def __post_init__(self) -> None:
        if self.courier and self.member.address:
            raise UserError(f"a courier has no address, it dials the servers: {self.member.name}")

    @property
    def role(self) -> str:
        if self.courier:
            return "courier"
        if self.member.address:
            return "server"
        return "client"

    @property
    def is_server(self) -> bool:
        return self.role == "server"

    @property
    def text(self) -> str:
        """The file."""
        return toml.dump({**self._said(), "signature": self.signature.hex()})

    def signed(self, signer: Ed25519Signer) -> Request:
        return replace(self, signature=signer(self._signed()))

    def check(self) -> None:
        """That it is the key's own and could be pinned; a UserError says why not."""
        name = self.member.name
        scheme = Ed25519()
        if scheme.weak(self.key):
            raise UserError(
                f"the key of {name} is weak, others could sign for it: make a new one, `fedrfq keys new`"
            )
        if not scheme.verify(self.key, self._signed(), self.signature):
            raise UserError(
                f"the request of {name} is not signed by its own key: ask {name} for it again"
            )
        certificates.check(self.member.certificate, name)

    @staticmethod
    def read(text: str, where: str) -> Request:
        """From the file's text, which must be exactly what this program writes; checked."""
        try:
            table = toml.strict(text)
            key = bytes.fromhex(table["key"])
            signature = bytes.fromhex(table["signature"])
            found = Request(Member.of(table), key, signature, table["role"] == "courier")
            if found.text != text:
                raise ValueError("it is not as this program writes it")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{where} is not a party's request ({error!r}): `fedrfq keys new` writes one"
            ) from error
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        found.check()
        return found

    def _said(self) -> dict[str, Any]:
        return {"version": VERSION, "role": self.role, **self.member.row(self.key)}

    def _signed(self) -> bytes:
        return _TAG + toml.dump(self._said()).encode()
