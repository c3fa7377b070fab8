"""What is registered from outside the package: methods, attacks, detectors, models, datasets, ….

A plugin is a Python file, an installed package (entry points of the group `fedrfq.plugins`), or a
script or notebook that calls `register`. The registries stay plain dicts; a plugin adds to them.

Code runs only because the user says so: by naming the file, by having named a file with the same
bytes before on this machine (a copy is kept, by its hash, in the user's own configuration folder),
or by having installed the package. What an experiment file says about plugins is a claim: it is
compared with what is known here, and no path in it is ever followed.
"""

from fedrfq.plugins.blame import failing_line
from fedrfq.plugins.files import load_plugin, options, remembered_folder
from fedrfq.plugins.known import Plugin, name_of, owner_of, rows_of, sources
from fedrfq.plugins.loading import check_not_loading
from fedrfq.plugins.packages import GROUP, broken, load_installed
from fedrfq.plugins.recorded import PluginMissing, file_of, recall, recall_known
from fedrfq.plugins.registering import register
from fedrfq.plugins.registries import REGISTRIES

__all__ = [
    "GROUP",
    "REGISTRIES",
    "Plugin",
    "PluginMissing",
    "broken",
    "check_not_loading",
    "failing_line",
    "file_of",
    "load_installed",
    "load_plugin",
    "name_of",
    "options",
    "owner_of",
    "recall",
    "recall_known",
    "register",
    "remembered_folder",
    "rows_of",
    "sources",
]
