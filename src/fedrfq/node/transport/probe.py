"""Whether the servers can be reached: dialled as in earnest, with both certificates shown, and then hung up."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from typing import NamedTuple

from fedrfq.federation.members import endpoint
from fedrfq.node.membership.identity import Identity
from fedrfq.node.transport import tls

_AT_ONCE = 64
_REMEDY = "its operator must start it, or let the port through"


class ProbeResult(NamedTuple):
    """Whether all is well, and what was found; `there`: something answered."""

    well: bool
    note: str
    there: bool = True


async def servers(identity: Identity, patience_s: float) -> dict[int, ProbeResult]:
    """What became of dialling each server but oneself, by its number, within that many seconds each."""
    context = tls.client_context(identity)
    turns = asyncio.Semaphore(_AT_ONCE)
    others = [server for server in range(identity.federation.roster.n) if server != identity.party]

    async def dialled(server: int) -> ProbeResult:
        async with turns:
            return await _dialled(identity, server, context, patience_s)

    return dict(zip(others, await asyncio.gather(*map(dialled, others)), strict=True))


async def _dialled(
    identity: Identity, server: int, context: ssl.SSLContext, patience_s: float
) -> ProbeResult:
    address = identity.federation.members[server].address
    began = time.monotonic()
    try:
        async with asyncio.timeout(patience_s):
            well, note, _ = await _greeted(identity, server, context)
    except ssl.SSLCertVerificationError:
        return ProbeResult(
            False,
            f"{address}: what answers shows no certificate of this federation: is it the right address?",
        )
    except ssl.SSLError as error:
        return ProbeResult(
            False,
            f"{address}: refuses this party ({error.reason}): has it the same federation.toml?",
        )
    except TimeoutError:
        return ProbeResult(
            False, f"{address}: no answer within {patience_s:g} s: {_REMEDY}", there=False
        )
    except OSError as error:
        if error.errno and error.errno > 0:
            why = os.strerror(error.errno)
        else:
            why = error.strerror or "cannot be reached"
        return ProbeResult(False, f"{address}: {why}: {_REMEDY}", there=False)
    return ProbeResult(well, f"{address}: {note}, {1000 * (time.monotonic() - began):.0f} ms")


async def _greeted(identity: Identity, server: int, context: ssl.SSLContext) -> ProbeResult:
    """A server's first word says that it has taken our certificate. One of a higher number does not wait to be dialled by a
    server, and hangs up."""
    reader, writer = await asyncio.open_connection(
        *endpoint(identity.federation.members[server].address), ssl=context
    )
    try:
        shown = tls.party(
            identity.federation, writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        )
        if shown != server:
            if shown is None:
                who = "nobody"
            else:
                who = identity.federation.members[shown].name
            return ProbeResult(False, f"answers as {who}: is it the right address?")
        if await reader.read(1) or 0 <= identity.party < server:
            return ProbeResult(True, "answers")
        return ProbeResult(False, "hangs up: has it the same federation.toml?")
    finally:
        writer.transport.abort()
