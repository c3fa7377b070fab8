"""fedrfq: federated learning by pooled class prototypes.

>>> import fedrfq
>>> experiment = fedrfq.load(sets=["rounds=5", "method.name=fedrfq"])
>>> for record in fedrfq.run(experiment):
...     print(record.round, record.accuracy_mean)
"""

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, load
from fedrfq.measure import RoundRecord
from fedrfq.session import run

__all__ = ["Experiment", "RoundRecord", "UserError", "load", "run"]
