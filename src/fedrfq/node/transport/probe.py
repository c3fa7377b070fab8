"""Finds out whether the servers can be reached, by connecting as in earnest and hanging up."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import NamedTuple

from fedrfq.federation.members import endpoint
from fedrfq.node.membership.identity import Identity
from fedrfq.node.transport import failures, tls

_MAX_CONCURRENT = 64


class ProbeResult(NamedTuple):
    """Whether all is well, and a note for the operator; `there` says if anything answered."""

    well: bool
    note: str
    there: bool = True


async def servers(identity: Identity, patience_s: float) -> dict[int, ProbeResult]:
    """Dial every other server, for at most so many seconds each; return the results by number."""
    context = tls.client_context(identity)
    turns = asyncio.Semaphore(_MAX_CONCURRENT)
    others = [server for server in range(identity.federation.roster.n) if server != identity.party]

    async def probe(server: int) -> ProbeResult:
        async with turns:
            return await _probe(identity, server, context, patience_s)

    return dict(zip(others, await asyncio.gather(*map(probe, others)), strict=True))


async def _probe(
    identity: Identity, server: int, context: ssl.SSLContext, patience_s: float
) -> ProbeResult:
    address = identity.federation.members[server].address
    began = time.monotonic()
    try:
        async with asyncio.timeout(patience_s):
            well, note, _ = await _greet(identity, server, context)
    except ssl.SSLError as error:
        return ProbeResult(False, f"{address}: {failures.in_words(error)}")
    except TimeoutError:
        words = failures.no_answer(f" within {patience_s:g} s")
        return ProbeResult(False, f"{address}: {words}", there=False)
    except OSError as error:
        return ProbeResult(False, f"{address}: {failures.in_words(error)}", there=False)
    return ProbeResult(well, f"{address}: {note}, {1000 * (time.monotonic() - began):.0f} ms")


async def _greet(identity: Identity, server: int, context: ssl.SSLContext) -> ProbeResult:
    """Connect, and wait for the server's first byte."""
    reader, writer = await asyncio.open_connection(
        *endpoint(identity.federation.members[server].address), ssl=context
    )
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        shown = tls.party(identity.federation, certificate)
        if shown is None:
            return ProbeResult(False, "answers as nobody: is the address right?")
        if shown != server:
            name = identity.federation.members[shown].name
            return ProbeResult(False, f"answers as {name}: is the address right?")
        # In TLS 1.3 the dialling side completes its handshake before its own certificate has been
        # checked: only a first byte says that it was accepted. A server with a higher number does
        # not accept this server's call but dials it, so it hangs up although all is well.
        accepted = await reader.read(1)
        if accepted or 0 <= identity.party < server:
            return ProbeResult(True, "answers")
        return ProbeResult(False, "hangs up: does it have the same federation.toml?")
    finally:
        writer.transport.abort()
