"""The methods by name. A new method is a file beside these and a line here."""

from fedrfq.methods.fedavg import FedAvg
from fedrfq.methods.fedper import FedPer
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.fedprox import FedProx
from fedrfq.methods.fedrep import FedRep
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.fedrfq_lean import FedRFQLean
from fedrfq.methods.fesem import FeSEM
from fedrfq.methods.local import Local
from fedrfq.methods.method import Method

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fesem": FeSEM,
    "fedproto": FedProto,
    "fedrfq": FedRFQ,
    "fedrfq-lean": FedRFQLean,
}

__all__ = ["METHODS", "Method"]
