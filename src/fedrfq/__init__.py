"""fedrfq: federated learning by pooled class prototypes.

>>> import fedrfq
>>> run = fedrfq.run({"rounds": 5, "method": {"name": "fedrfq"}})
>>> for record in run:
...     print(record.round, record.accuracy_mean)
>>> run.rounds, run.clients, run.models[3], run.path
"""

from __future__ import annotations

from importlib import import_module

# Type checkers take this for true. To import it from typing would take longer than all else here,
# and Ctrl-C shows a traceback until `fedrfq.cli.start` has been imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fedrfq.api.classifier import FedRFQClassifier
    from fedrfq.api.run import Run, resume, run
    from fedrfq.api.studies import compare, reproduce, robustness
    from fedrfq.data import Dataset
    from fedrfq.errors import UserError
    from fedrfq.experiment import Experiment, load
    from fedrfq.learning.evaluation import RoundRecord
    from fedrfq.plugins import load_plugin, register
    from fedrfq.runs.callbacks import Callback

    __version__: str

__all__ = [
    "Callback",
    "Dataset",
    "Experiment",
    "FedRFQClassifier",
    "RoundRecord",
    "Run",
    "UserError",
    "__version__",
    "compare",
    "load",
    "load_plugin",
    "register",
    "reproduce",
    "resume",
    "robustness",
    "run",
]

# Where each public name lives. A name is imported when it is first used: `import fedrfq` stays
# quick, and a server, which needs this package but not PyTorch, never loads PyTorch.
_HOMES = {
    "Callback": "runs.callbacks",
    "Dataset": "data",
    "Experiment": "experiment",
    "FedRFQClassifier": "api.classifier",
    "RoundRecord": "learning.evaluation",
    "Run": "api.run",
    "UserError": "errors",
    "compare": "api.studies",
    "load": "experiment",
    "load_plugin": "plugins",
    "register": "plugins",
    "reproduce": "api.studies",
    "resume": "api.run",
    "robustness": "api.studies",
    "run": "api.run",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module, or look up the version, on first use."""
    if name == "__version__":
        return _installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module 'fedrfq' has no attribute {name!r}")
    return getattr(import_module(f"fedrfq.{_HOMES[name]}"), name)


def _installed_version() -> str:
    """Return the version of the installed package, or "unknown" in a bare source tree."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fedrfq")
    except PackageNotFoundError:
        return "unknown"
