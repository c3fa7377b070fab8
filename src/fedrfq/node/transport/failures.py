"""Why there is no connection to a server, in words that its operator or ours can act on."""

from __future__ import annotations

import os
import socket
import ssl

# As OpenSSL numbers them: a certificate of the federation, but not of this time.
_NOT_YET_VALID = 9
_EXPIRED = 10
_CLOCKS = "set whichever of the two clocks is wrong"
_ADDRESS = "is the address right?"
_SAME_FILE = "does it have the same federation.toml?"
_START = "its operator must start it or open the port in the firewall"
# The reasons for which a link ends before both ends know each other.
_ENDED = {
    "closed by the peer": f"it hangs up: {_SAME_FILE}",
    "lost": f"it hangs up: {_SAME_FILE}",
    "slow handshake": "it takes the connection and says nothing: its operator must restart it",
    "wrong certificate": f"it shows another party's certificate: {_ADDRESS}",
}


def is_of_another_time(error: Exception) -> bool:
    """Return whether a certificate was refused for its dates alone."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return False
    return error.verify_code in (_NOT_YET_VALID, _EXPIRED)


def in_words(error: Exception) -> str:
    """Return why a server could not be connected to, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error)
    if isinstance(error, ssl.SSLError):
        return _of_tls(error.reason or "TLS")
    if isinstance(error, socket.gaierror):
        return f"its host name cannot be looked up ({error.strerror}): {_ADDRESS}"
    if isinstance(error, TimeoutError):
        return no_answer()
    if isinstance(error, OSError):
        return f"{_of_system(error)}: {_START}"
    return f"its address is not a host name: {_ADDRESS}"


def no_answer(within: str = "") -> str:
    """Return that a server has not answered, within some time."""
    return f"no answer{within}: {_START}"


def ended(why: str) -> str:
    """Return why a link ended before both ends knew each other, from the link's own reason."""
    return _ENDED.get(why, why)


def _of_certificate(error: ssl.SSLCertVerificationError) -> str:
    if not is_of_another_time(error):
        return f"it shows no certificate of this federation: {_ADDRESS}"
    what = "is not valid yet"
    if error.verify_code == _EXPIRED:
        what = "has expired"
    return f"its certificate {what} by this machine's clock: {_CLOCKS}"


def _of_tls(reason: str) -> str:
    # Only an alert is the other end's own word.
    if "ALERT" not in reason:
        return f"it does not speak TLS ({reason}): {_ADDRESS}"
    # OpenSSL calls a certificate bad that is not valid yet.
    if reason.endswith(("CERTIFICATE_EXPIRED", "BAD_CERTIFICATE")):
        return f"it refuses this party's certificate ({reason}): {_CLOCKS}"
    return f"it refuses this party ({reason}): {_SAME_FILE}"


def _of_system(error: OSError) -> str:
    # asyncio puts addresses into its texts; the system's own name for the error is shorter.
    if error.errno:
        return os.strerror(error.errno)
    return "it cannot be reached"
