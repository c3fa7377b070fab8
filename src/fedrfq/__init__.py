"""fedrfq: federated learning by pooled class prototypes.

>>> import fedrfq
>>> experiment = fedrfq.load(sets=["rounds=5", "method.name=fedrfq"])
>>> for record in fedrfq.run(experiment):
...     print(record.round, record.accuracy_mean)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrfq.errors import UserError
    from fedrfq.experiment import Experiment, load
    from fedrfq.learning.evaluation import RoundRecord
    from fedrfq.runs.session import run

__all__ = ["Experiment", "RoundRecord", "UserError", "load", "run"]

_HOMES = {
    "Experiment": "experiment",
    "RoundRecord": "learning.evaluation",
    "UserError": "errors",
    "load": "experiment",
    "run": "runs.session",
}


def __getattr__(name: str) -> Any:
    """Imported when first used: a server needs the aggregation of this package, and no PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedrfq' has no attribute {name!r}")
    return getattr(import_module(f"fedrfq.{_HOMES[name]}"), name)
