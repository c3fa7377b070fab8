"""The images: a trial consortium runs in them, on machines that can build them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from project import images
from support.paths import ROOT


def test_a_trial_consortium_runs_in_the_images(tmp_path: Path) -> None:
    """Building takes minutes, and pip must find wheels; what lies between is kept."""
    if missing := images.missing():
        pytest.skip(f"{' and '.join(missing)} not installed")
    if os.getuid():
        pytest.skip("mmdebstrap and the users of the images need root")
    out = tmp_path / "images.json"
    command = [images.__file__, "--work", ROOT / "build" / "images", "--out", out]
    subprocess.run([sys.executable, *map(str, command)], check=True)
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["verified"].startswith("4 logs agree; 3 rounds")
    assert {"localhost/fedrfq-server:latest", "localhost/fedrfq-client:latest"} <= {
        *record["sizes"]
    }
