"""The program `fedrfq`, killed by signal 9 whenever it has drawn an upload with noise.

The upload is on the disk then, and not yet signed or sent. Started again, the program finds it and
goes on, until it draws the next one. `bench/parity.py --kill` uses it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from fedrfq.cli.start import start
from fedrfq.privacy.drawn_uploads import DrawnUpload, DrawnUploads, UploadKey

_once = DrawnUploads.once


def _once_and_die(
    self: DrawnUploads, key: UploadKey, draw: Callable[[], DrawnUpload]
) -> DrawnUpload:
    found = self.get(key)
    drawn = _once(self, key, draw)
    if found is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return drawn


if __name__ == "__main__":
    DrawnUploads.once = _once_and_die  # type: ignore[method-assign]
    start()
