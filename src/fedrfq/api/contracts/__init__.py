"""What every method, attack, detector and the like must keep to: contracts that can be checked.

`fedrfq check my.py` runs them against a plugin; the package's own tests run them against all that
comes with it.
"""

from fedrfq.api.contracts.check import Finding, check_package, check_plugin, checks
from fedrfq.api.contracts.contract import Broken

__all__ = ["Broken", "Finding", "check_package", "check_plugin", "checks"]
