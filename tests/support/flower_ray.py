"""One Ray cluster for many runs of Flower's simulation engine, since starting one takes longest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Ends with its standard input, so also when the tests are killed.
_CLUSTER = """
import sys
import ray
cluster = ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
print("ADDRESS", cluster.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


@contextmanager
def ray_cluster(cores: int) -> Iterator[str]:
    """Yield the address of a cluster, for RAY_ADDRESS; a node of Flower takes one of its cores."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLUSTER, str(cores)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        # Ray may print other lines first.
        address = next(line.split()[1] for line in process.stdout if line.startswith("ADDRESS"))
        yield address
