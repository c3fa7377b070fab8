"""TLS without its socket: what one end of a connection does with the bytes that come and go.

asyncio's own TLS transport keeps 256 KiB a connection, tells nothing of an address before the handshake is over, and logs
what strangers do wrong. Here an idle connection keeps no buffer, and every error is the caller's to count.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress

# A record's plaintext at most. OpenSSL's memory buffers stay as large as they ever were, so they get no more at a time.
_RECORD = 16 << 10
_PIECE = _RECORD + 256  # a whole record with its frills


class TlsStream:
    """One end. Whatever is called, `outgoing` may then have something for the other end."""

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side)
        self.certificate: bytes | None = None  # the other end's, once the handshake is over

    def outgoing(self) -> bytes:
        return self._out.read()

    def handshake(self) -> bool:
        """Go on with it as far as possible; whether it is over now. Raises `ssl.SSLError` where it has failed."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.certificate = self._tls.getpeercert(binary_form=True) or b""
        return self.certificate is not None

    def open(self, data: memoryview) -> Iterator[bytes]:
        """The plaintext in what has come. An empty piece says that the handshake is over. Raises `ssl.SSLError`, which is
        an `ssl.SSLZeroReturnError` where the other end says goodbye."""
        if self.certificate is None or len(data) > _PIECE:
            return self._in_pieces(data)
        self._in.write(data)
        return self._plain()

    def _in_pieces(self, data: memoryview) -> Iterator[bytes]:
        for start in range(0, len(data), _PIECE):
            self._in.write(data[start : start + _PIECE])
            if self.certificate is None:
                if not self.handshake():
                    continue
                yield b""
            yield from self._plain()

    def _plain(self) -> Iterator[bytes]:
        try:
            while (
                self._in.pending or self._tls.pending()
            ):  # to find out by an error that all is read takes longer
                piece = self._tls.read(_RECORD)
                if not piece:
                    raise ssl.SSLZeroReturnError
                yield piece
        except ssl.SSLWantReadError:  # the rest is yet to come
            return

    def seal(self, data: bytes) -> bytes:
        """For the other end."""
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
        """The last thing to send: the other end knows by it that nothing was cut off."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._out.read()
