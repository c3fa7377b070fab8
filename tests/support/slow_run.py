"""The program as `python -m fedrfq.cli`, but slower from a round on, so that a test meets it there.

python -m support.slow_run ROUNDS COMMAND...
"""

import runpy
import sys
import time

from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.runs.run_directory import RunDirectory
from support.command import PAUSE

append = RunDirectory.append
fast = int(sys.argv.pop(1))


def append_slowly(self: RunDirectory, outcome: RoundOutcome) -> None:
    append(self, outcome)
    if outcome.record.round >= fast:
        time.sleep(PAUSE)


RunDirectory.append = append_slowly  # type: ignore[method-assign]
runpy.run_module("fedrfq.cli", run_name="__main__", alter_sys=True)
