"""The paths of the project's own files."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BENCH = ROOT / "bench"
RESULTS = ROOT / "results"
SHARED = ROOT.parent / "shared"
