"""The latest statistics of each client, which the servers of a revocable federation keep.

The certified statistics follow from them alone, by an exact function: all are judged and averaged
as if they were the uploads of a first round. So whatever a client takes back leaves no trace in
what remains, neither in the averages nor in how others are judged.

A client takes something back by sending, in any round and in place of that round's upload,
statistics that replace its last ones: of the samples that it still has, or of none. They are
marked, so that nobody takes them for prototypes. They are signed for their round like any upload.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation.public_task import PublicTask
from fedrfq.prototypes.fixed_point import EMPTY_BYTES, Globals, Uploads, decode, encode
from fedrfq.robust.aggregation import decide_public
from fedrfq.robust.detectors.detector import Detector, Verdict
from fedrfq.robust.state import RETAINED, State, inner_state, outer_state

# It starts statistics that replace a client's last ones. No other upload starts so.
MARK = b"replaces"
_WORD = 8  # bytes of a number in the state

# The contents of uploads, as they were signed, by client.
Retained = Mapping[int, bytes]


def is_replacing(content: bytes) -> bool:
    """Return whether an upload replaces its client's last statistics in a round of its choice."""
    return content.startswith(MARK)


def statistics_of(content: bytes) -> bytes:
    """Return the statistics in an upload, with the mark or without."""
    return content.removeprefix(MARK)


def withdrawal(round_: int, client: int, public: PublicTask) -> bytes:
    """Return the upload by which a client takes back all its statistics."""
    nothing = public.nothing()
    counts_R = np.zeros(public.rows, np.int64)
    return MARK + encode(round_, client, counts_R, nothing.values_JV, public.precision)


def is_withdrawal(content: bytes) -> bool:
    """Return whether an upload takes back all that its client has sent."""
    return is_replacing(content) and len(statistics_of(content)) == EMPTY_BYTES


def revised(retained: Retained, round_: int, uploads: Uploads, due: bool) -> Retained:
    """Return what is kept after a round; `due` says that its uploads are statistics."""
    sent: Retained = uploads.replaced
    if due:
        contents = zip(uploads.clients, uploads.encoded(round_), strict=True)
        # A client whose budget for privacy is spent sends no class, and takes nothing back.
        sent = {k: content for k, content in contents if content[EMPTY_BYTES:]}
    latest = {**retained, **sent}
    return {k: latest[k] for k in sorted(latest) if not is_withdrawal(latest[k])}


def judged(
    retained: Retained, public: PublicTask, detector: Detector, clients: int
) -> tuple[Verdict, Globals]:
    """Return the verdict on the clients whose statistics are kept, and the federation's statistics.

    Nothing of an earlier round goes into them.
    """
    nothing = public.nothing()
    if not retained:
        return Verdict.on_nobody(public.classes), nothing
    if min(retained) < 0 or max(retained) >= clients:
        raise Refused(f"the state names clients that are not among the {clients}")
    uploads = _uploads(retained, public)
    _, verdict, statistics = decide_public(detector, clients, public.classes, nothing, uploads)
    return verdict, statistics


def _uploads(retained: Retained, public: PublicTask) -> Uploads:
    counts = []
    values = []
    for content in retained.values():
        try:
            _, _, counts_R, values_RV = decode(
                statistics_of(content), public.rows, public.values, public.precision
            )
        except UserError as error:
            raise Refused(f"the state keeps what is no upload: {error}") from error
        counts.append(counts_R)
        values.append(values_RV)
    return Uploads(
        tuple(retained),
        np.stack(counts),
        np.stack(values),
        precision=public.precision,
        noise=public.noise,
    )


def verdict_on(clients: tuple[int, ...], retained: Retained, verdict: Verdict) -> Verdict:
    """Return the verdict on a round's clients, given that on those whose statistics are kept.

    Who has taken back everything has sent no class. Whose statistics are older is left out.
    """
    place = {client: row for row, client in enumerate(retained)}
    kept_K = np.isin(clients, tuple(retained))
    rows = [place[client] for client in clients if client in place]
    shape = (len(clients), verdict.weight_KJ.shape[1])
    found = Verdict(np.zeros(shape, np.int64), np.zeros(shape[0], np.int64), np.zeros(shape, int))
    found.weight_KJ[kept_K] = verdict.weight_KJ[rows]
    found.score_K[kept_K] = verdict.score_K[rows]
    found.reason_KJ[kept_K] = verdict.reason_KJ[rows]
    return found


# In the state, beside what detector and rule remember: arrays of numbers, by the client's number.


def retained_in(state: State) -> Retained:
    """Return the clients' latest statistics, by ascending client."""
    try:
        found = {int(k): _bytes_in(array) for k, array in inner_state(state, RETAINED).items()}
    except ValueError as error:
        raise Refused(f"the state does not name a client, or is cut: {error}") from error
    return dict(sorted(found.items()))


def own_state(state: State) -> State:
    """Return what detector and rule remember, without the clients' statistics."""
    return {name: array for name, array in state.items() if not name.startswith(f"{RETAINED}/")}


def retaining(retained: Retained) -> State:
    """Return the clients' latest statistics as a part of the state."""
    arrays = {str(client): _numbers_of(content) for client, content in retained.items()}
    return outer_state(arrays, RETAINED)


def _numbers_of(content: bytes) -> np.typing.NDArray[np.int64]:
    """Return the length of the bytes, then the bytes, eight to a number."""
    padding = bytes(-len(content) % _WORD)
    head = len(content).to_bytes(_WORD, "little")
    return np.frombuffer(head + content + padding, "<i8").astype(np.int64)


def _bytes_in(numbers: np.typing.NDArray[np.int64]) -> bytes:
    data = numbers.astype("<i8").tobytes()
    length = int.from_bytes(data[:_WORD], "little")
    content = data[_WORD : _WORD + length]
    if len(content) != length:
        raise ValueError(f"{length} bytes announced, {len(content)} found")
    return content
