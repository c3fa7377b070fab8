"""What the network benchmarks share."""

import os
import time

from testbed import cpu_s


def test_cpu_time_is_what_the_system_has_counted() -> None:
    """The kernel counts in ticks of 10 ms, programs and kernel apart."""
    ticks_s = 0.05
    before = time.process_time()
    counted = cpu_s([os.getpid()])
    assert before - ticks_s < counted < time.process_time() + ticks_s
    assert cpu_s([os.getpid(), os.getpid()]) >= 2 * counted
