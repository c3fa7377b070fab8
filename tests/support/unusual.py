"""What a hostile folder has where a regular file is expected."""

import os
import shutil
from pathlib import Path

SPARSE_BYTES = 1 << 40


def put_instead(path: Path, kind: str) -> None:
    """Put a pipe, a link to a device, a folder or a sparse file in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, SPARSE_BYTES)
