"""Pictures are drawn without a window, and nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_DRAWS = """
import sys
from pathlib import Path
from fedrfq.files.pictures import save_png, subplots

assert "matplotlib" not in sys.modules
figure, [[left, right]] = subplots((4, 2), 1, 2)
left.plot([1, 2], [3, 4])
print(save_png(figure, Path(sys.argv[1])))
assert "matplotlib.pyplot" not in sys.modules
"""


def test_a_picture_needs_no_window_whatever_the_user_has_set(tmp_path: Path) -> None:
    path = tmp_path / "drawn.png"
    # A window would be looked for in vain.
    wants_windows = {**os.environ, "MPLBACKEND": "tkagg", "DISPLAY": ":999"}
    command = [sys.executable, "-c", _DRAWS, str(path)]
    found = subprocess.run(command, env=wants_windows, capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr, found.returncode) == (f"{path}\n", "", 0)
    assert path.read_bytes().startswith(b"\x89PNG")
