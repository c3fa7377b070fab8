"""TLS without its socket: turns the bytes of a connection into plaintext, and back.

asyncio's own TLS transport keeps 256 KiB per connection, does not tell the peer's address before
the handshake is over, and logs what strangers do wrong. Here an idle connection keeps no buffer,
and every error is left to the caller to count.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress

# The most plaintext in a record (RFC 8446, 5.1). OpenSSL's memory buffers never shrink, so they are
# given no more than one record at a time.
_RECORD = 16 << 10
# A complete record with its header and tag (RFC 8446, 5.2: at most 256 bytes more).
_PIECE = _RECORD + 256


class TlsStream:
    """One end of a TLS connection.

    After any call, `outgoing` may have something to send to the other end.
    """

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side)
        # The other end's certificate, once the handshake is over.
        self.certificate: bytes | None = None

    def outgoing(self) -> bytes:
        """Return what is to be sent to the other end."""
        # Mostly nothing, and asking is cheaper than reading.
        if not self._out.pending:
            return b""
        return self._out.read()

    def handshake(self) -> bool:
        """Continue the handshake as far as possible, and tell whether it is complete.

        Raises `ssl.SSLError` if it has failed.
        """
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.certificate = self._tls.getpeercert(binary_form=True) or b""
        return self.certificate is not None

    def open(self, data: memoryview) -> Iterator[bytes]:
        """Yield the plaintext of what has arrived; an empty piece says the handshake is complete.

        Raises `ssl.SSLError`, and its subclass `ssl.SSLZeroReturnError` when the other end has
        closed the connection properly.
        """
        if self.certificate is None or len(data) > _PIECE:
            return self._in_pieces(data)
        self._in.write(data)
        return self._plaintext()

    def _in_pieces(self, data: memoryview) -> Iterator[bytes]:
        for start in range(0, len(data), _PIECE):
            self._in.write(data[start : start + _PIECE])
            if self.certificate is None:
                if not self.handshake():
                    continue
                yield b""
            yield from self._plaintext()

    def _plaintext(self) -> Iterator[bytes]:
        try:
            # Asking first is cheaper than finding out by an exception that nothing is left.
            while self._in.pending or self._tls.pending():
                piece = self._tls.read(_RECORD)
                if not piece:
                    raise ssl.SSLZeroReturnError
                yield piece
        except ssl.SSLWantReadError:
            # The rest of a record has not arrived yet.
            return

    def seal(self, data: bytes) -> bytes:
        """Return the data encrypted for the other end."""
        if len(data) <= _RECORD:
            self._tls.write(data)
            return self._out.read()
        view = memoryview(data)
        sealed = []
        for start in range(0, len(view), _RECORD):
            self._tls.write(view[start : start + _RECORD])
            sealed.append(self._out.read())
        return b"".join(sealed)

    def goodbye(self) -> bytes:
        """Return the closing alert, which tells the other end that nothing was cut off."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._out.read()
