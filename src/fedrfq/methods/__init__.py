"""The methods by name. A new one is a file beside these and a line here."""

from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.local import Local
from fedrfq.methods.method import Method

METHODS: dict[str, type[Method]] = {"local": Local, "fedproto": FedProto, "fedrfq": FedRFQ}

__all__ = ["METHODS", "Method"]
