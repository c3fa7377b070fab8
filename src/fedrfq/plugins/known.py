"""The plugins that this process knows, and which of them each registered name belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedrfq.errors import UserError
from fedrfq.plugins.registries import REGISTRIES


@dataclass(eq=False)
class Plugin:
    """Where registered things came from: the same bytes are the same plugin."""

    name: str  # the file's name, "package NAME", or "notebook KIND NAME"
    sha256: str
    entries: dict[tuple[str, str], Any] = field(default_factory=dict)  # by kind and name

    def row(self) -> dict[str, str]:
        """Return the plugin as experiment.toml records it."""
        return {"name": self.name, "sha256": self.sha256}

    def activate(self) -> None:
        """Make its names mean what this version of it says."""
        for (kind, name), value in self.entries.items():
            check_free(kind, name)
            REGISTRIES[kind].entries()[name] = value
            OWNERS[kind, name] = self


# Every plugin that this process has loaded, by its hash; which one owns a name now; and the latest
# that the user has named, by its name.
LOADED: dict[str, Plugin] = {}
OWNERS: dict[tuple[str, str], Plugin] = {}
GIVEN: dict[str, Plugin] = {}


def given(plugin: Plugin) -> Plugin:
    """Return the plugin, as the one that its name stands for from now on."""
    known = LOADED.setdefault(plugin.sha256, plugin)
    GIVEN[known.name] = known
    return known


def check_free(kind: str, name: str) -> None:
    """Raise UserError where a name is the package's own."""
    if name in REGISTRIES[kind].entries() and (kind, name) not in OWNERS:
        raise UserError(f"{kind} '{name}' is fedrfq's own: register yours by another name")


def check_rivals(plugin: Plugin) -> None:
    """Raise UserError if another plugin that is in use has registered one of its names."""
    for (kind, name), owner in OWNERS.items():
        is_rival = owner.name != plugin.name and GIVEN.get(owner.name) is owner
        if is_rival and (kind, name) in plugin.entries:
            raise UserError(
                f"{kind} '{name}' is registered by {owner.name} and by {plugin.name}: "
                "rename one of them"
            )


def rows_of(values: Iterable[object], names: Iterable[str]) -> list[dict[str, str]]:
    """Return the plugins behind these classes and names, as an experiment records them."""
    classes = list(values)
    wanted = set(names)
    used = {owner.sha256: owner for (_, name), owner in OWNERS.items() if name in wanted}
    for plugin in LOADED.values():
        # By identity: a class may have lost its name to a newer version, and is still this one.
        if any(value is cls for value in plugin.entries.values() for cls in classes):
            used[plugin.sha256] = plugin
    return [plugin.row() for plugin in sorted(used.values(), key=lambda p: (p.name, p.sha256))]


def owner_of(thing: object) -> Plugin | None:
    """Return the plugin that registered a thing or the class of it; None if it is our own."""
    for plugin in LOADED.values():
        if any(value is thing or value is type(thing) for value in plugin.entries.values()):
            return plugin
    return None


def name_of(cls: type[Any]) -> str | None:
    """Return the name under which a plugin registered a class, also after a newer one took it."""
    for plugin in LOADED.values():
        for (_, name), value in plugin.entries.items():
            if value is cls:
                return name
    return None


def sources(kind: str) -> dict[str, str]:
    """Return where each name of a kind comes from that a plugin has registered."""
    return {name: plugin.name for (of, name), plugin in OWNERS.items() if of == kind}
