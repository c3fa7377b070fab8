"""What is registered from outside the package: methods, attacks, detectors, models, datasets, ….

A plugin is a Python file, an installed package (entry points of the group `fedrfq.plugins`), or a
script or notebook that calls `register`. The registries stay plain dicts; a plugin adds to them.

Code runs only because the user says so: by naming the file, by having named a file with the same
bytes before on this machine (a copy is kept, by its hash, in the user's own configuration folder),
or by having installed the package. What an experiment file says about plugins is a claim: it is
compared with what is known here, and no path in it is ever followed.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedrfq.errors import UserError, did_you_mean
from fedrfq.files import regular
from fedrfq.files.atomic import write_atomically

GROUP = "fedrfq.plugins"
_MAX_BYTES = 1 << 20  # of a plugin file
_MAX_ROWS = 64  # of plugins that one experiment may name
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


class Registry(NamedTuple):
    """Where the package keeps one kind of thing by name, and what such a thing is."""

    module: str
    dict_name: str
    base: str = ""  # a name in the same module: the class to derive from, or to make one of

    def entries(self) -> dict[str, Any]:
        """Return the dict itself; this imports what is in it."""
        found: dict[str, Any] = getattr(import_module(self.module), self.dict_name)
        return found


# By kind, as `register` and `fedrfq new` take it. Modules are imported when a kind is asked for:
# a server that registers a detector never loads PyTorch.
REGISTRIES: Mapping[str, Registry] = {
    "method": Registry("fedrfq.methods", "METHODS", "Method"),
    "attack": Registry("fedrfq.robust.attacks", "ATTACKS", "Attack"),
    "detector": Registry("fedrfq.robust.detectors", "DETECTORS", "Detector"),
    "rule": Registry("fedrfq.robust.rules", "RULES", "Rule"),
    "model": Registry("fedrfq.models", "MODELS", "Model"),
    "public-map": Registry("fedrfq.models.public_maps", "PUBLIC_MAPS", "PublicMap"),
    "dataset": Registry("fedrfq.data", "DATASETS", "Source"),
    "partition": Registry("fedrfq.data.partition", "PARTITIONS"),
    "pooling": Registry("fedrfq.prototypes.pooling", "POOLS"),
    "adversary": Registry("fedrfq.simulator.adversaries", "BEHAVIOURS", "Behaviour"),
}


class PluginMissing(UserError):
    """An experiment needs a plugin that is not known here, or not in this version."""


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
            _check_free(kind, name)
            REGISTRIES[kind].entries()[name] = value
            _OWNERS[kind, name] = self


# Every plugin that this process has loaded, by its hash; which one owns a name now; and the latest
# that the user has named, by its name.
_LOADED: dict[str, Plugin] = {}
_OWNERS: dict[tuple[str, str], Plugin] = {}
_GIVEN: dict[str, Plugin] = {}
# The files that the user has named, as a command line names them again.
_FILES: list[str] = []
# The plugin that is being loaded, outermost first: what registers now belongs to the last.
_LOADING: list[Plugin] = []
# Installed packages that could not be loaded, and why.
_BROKEN: dict[str, str] = {}


def register(kind: str, name: str, value: Any = None) -> Any:
    """Register something of one's own under a name, as a decorator or with the thing itself.

    >>> @fedrfq.register("method", "pull")
    ... @dataclass(frozen=True)
    ... class Pull(FedProto): ...
    """
    if kind not in REGISTRIES:
        raise UserError(
            f"cannot register a {kind!r}: choose one of {', '.join(REGISTRIES)}"
            f"{did_you_mean(str(kind), REGISTRIES)}"
        )
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(
            f"a {kind} cannot be named {name!r}: use small letters, digits, '-', '_' and '.', "
            "64 at most"
        )
    if value is None:
        return lambda made: register(kind, name, made)
    _check_fits(kind, name, value)
    # Rules are registered with their settings, as values.
    entry = value() if kind == "rule" else value
    if _LOADING:
        # Its names count once the whole file has been read without an error.
        _LOADING[-1].entries[kind, name] = entry
        return value
    plugin = _calling(kind, name, value)
    plugin.entries[kind, name] = entry
    plugin.activate()
    return value


def _check_free(kind: str, name: str) -> None:
    """Raise UserError where a name is the package's own."""
    if name in REGISTRIES[kind].entries() and (kind, name) not in _OWNERS:
        raise UserError(f"{kind} '{name}' is fedrfq's own: register yours by another name")


def _check_fits(kind: str, name: str, value: Any) -> None:
    """Raise UserError where something is not of its kind."""
    _check_free(kind, name)
    why = _misfit(kind, name, value)
    if why:
        raise UserError(f"{kind} '{name}' cannot be registered: {why}")


def _misfit(kind: str, name: str, value: Any) -> str:
    """Return why something is not of its kind; "" if it is."""
    registry = REGISTRIES[kind]
    base = getattr(import_module(registry.module), registry.base or "__name__")
    if kind == "dataset":
        # Not a class: what is known of one dataset.
        if not isinstance(value, base):
            return f"expected a fedrfq.data.Source, found {value!r:.80}"
        if value.name != name:
            return f"its Source is named {value.name!r}: give both the same name"
        return ""
    if not callable(value):
        return f"expected a class or a function, found {value!r:.80}"
    if kind == "partition" and not (is_dataclass(value) and hasattr(value, "deal")):
        return "expected a frozen dataclass with a method deal(dataset, clients, rng)"
    if registry.base and not (isinstance(value, type) and issubclass(value, base)):
        return f"expected a subclass of {base.__module__}.{base.__qualname__}, found {value!r}"
    # A dataclass has taken its fields' options; in another class they would be left as they are.
    if any(isinstance(member, Field) for member in getattr(value, "__dict__", {}).values()):
        return "its options are not read: put @dataclass(frozen=True) below @register"
    return ""


# Where what calls `register` comes from


def _calling(kind: str, name: str, value: Any) -> Plugin:
    """Return the plugin that a script, a notebook or an imported module makes by registering."""
    caller = _caller()
    for entry in _installed():
        if entry.module == caller.get("__name__"):
            return _given(_package(entry))
    if "__file__" in caller:
        path = Path(caller["__file__"])
        return _given(Plugin(path.name, hashlib.sha256(path.read_bytes()).hexdigest()))
    try:
        source = inspect.getsource(value)
    except (OSError, TypeError):
        raise UserError(
            f"the source of {kind} '{name}' cannot be read, so a run could not say what it used: "
            "put it into a file"
        ) from None
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    return _given(Plugin(f"notebook {kind} {name}", sha256))


def _caller() -> dict[str, Any]:
    """Return the globals of the nearest code outside this module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    assert frame is not None, "somebody called"
    return frame.f_globals


def _given(plugin: Plugin) -> Plugin:
    """Return the plugin, as the one that its name stands for from now on."""
    known = _LOADED.setdefault(plugin.sha256, plugin)
    _GIVEN[known.name] = known
    return known


# Files


def load_plugin(path: Path | str) -> Plugin:
    """Load a plugin file because the user names it, and remember it for later commands."""
    path = Path(path)
    content = _read(path)
    # Packages first: one that takes the same name is a rival that must be known.
    load_installed()
    plugin = _given(_load(path.name, content, path))
    _check_rivals(plugin)
    plugin.activate()
    _remember(plugin.sha256, content)
    _FILES.append(str(path))
    return plugin


def _check_rivals(plugin: Plugin) -> None:
    """Raise UserError if another plugin that is in use has registered one of its names."""
    for (kind, name), owner in _OWNERS.items():
        is_rival = owner.name != plugin.name and _GIVEN.get(owner.name) is owner
        if is_rival and (kind, name) in plugin.entries:
            raise UserError(
                f"{kind} '{name}' is registered by {owner.name} and by {plugin.name}: "
                "rename one of them"
            )


def _read(path: Path) -> bytes:
    try:
        return regular.read_bytes(path, _MAX_BYTES, links=True)
    except OSError as error:
        raise UserError(
            f"cannot read the plugin {path}: {error.strerror}: check the path, or make it a package"
        ) from error


def _load(name: str, content: bytes, path: Path) -> Plugin:
    """Run a plugin's file, once for the same bytes, and return what it registers."""
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 in _LOADED and _LOADED[sha256].entries:
        return _LOADED[sha256]
    plugin = Plugin(name, sha256)
    module = ModuleType(f"fedrfq_plugin_{sha256[:16]}")
    module.__file__ = str(path)
    # Dataclasses look up the types of their fields there.
    sys.modules[module.__name__] = module
    with _loading(plugin, str(path)):
        # Exactly the bytes that were hashed: the file may have changed since.
        exec(compile(content, str(path), "exec"), module.__dict__)
    if not plugin.entries:
        raise UserError(
            f"{path} registers nothing: call fedrfq.register(KIND, NAME, …) in it, as "
            "docs/guides/plugins.md shows"
        )
    _LOADED[sha256] = plugin
    return plugin


@contextmanager
def _loading(plugin: Plugin, where: str) -> Iterator[None]:
    """Let what registers belong to the plugin; an error in its code becomes one line."""
    _LOADING.append(plugin)
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:
        line = _line_in(error, where)
        raise UserError(
            f"{where}{line}: the plugin fails with {type(error).__name__}: {error}"
        ) from error
    finally:
        _LOADING.pop()


def _line_in(error: Exception, where: str) -> str:
    """Return the last line of the file that an error passed through, as ", line N"."""
    found = ""
    if isinstance(error, SyntaxError):
        found = f", line {error.lineno}"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == where:
            found = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def remembered_folder() -> Path:
    """Return where copies of the files lie that this user has given, each named by its hash."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    # What is remembered may run, so it never lies below the current folder, whoever's that is.
    if not Path(base).is_absolute():
        base = Path.home() / ".config"
    return Path(base) / "fedrfq" / "plugins"


def _remember(sha256: str, content: bytes) -> None:
    path = remembered_folder() / f"{sha256}.py"
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, content)
    except (OSError, UserError):
        # A home that cannot be written to: later commands need --plugin again.
        return


def _recalled(name: str, sha256: str) -> Plugin | None:
    """Return the plugin of a file with these bytes that the user gave before, if there is one."""
    path = remembered_folder() / f"{sha256}.py"
    if not path.is_file():
        return None
    content = _read(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        return None
    return _load(name, content, path)


# Installed packages


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return what installed packages offer.

    Those that only lie in the current folder are left out: nobody has installed them.
    """
    here = Path.cwd()
    found = []
    for entry in entry_points(group=GROUP):
        if entry.dist is not None and Path(str(entry.dist.locate_file(""))).resolve() != here:
            found.append(entry)
    return tuple(found)


@cache
def load_installed() -> None:
    """Load the plugins of all installed packages, once; one that fails does not stop the others."""
    for entry in _installed():
        try:
            plugin = _package(entry)
            with _loading(plugin, plugin.name):
                entry.load()
            _check_rivals(plugin)
            plugin.activate()
        except UserError as error:
            _BROKEN[entry.name] = str(error)


def _package(entry: EntryPoint) -> Plugin:
    """Return the plugin of a package's entry point, known by the hash of all its Python files."""
    assert entry.dist is not None
    name = f"package {entry.dist.name}"
    # Found, not imported: what it registers while it is imported is to belong to the plugin.
    spec = find_spec(entry.module.split(".")[0])
    if spec is None:
        raise UserError(f"{name} has no module {entry.module}: install it again")
    files = []
    # A package without an __init__.py has folders only.
    if spec.has_location and spec.origin:
        files.append(Path(spec.origin))
    for folder in spec.submodule_search_locations or []:
        files += Path(folder).rglob("*.py")
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return _given(Plugin(name, digest.hexdigest()))


# What experiments say about plugins


def rows_of(values: Iterable[object], names: Iterable[str]) -> list[dict[str, str]]:
    """Return the plugins behind these classes and names, as an experiment records them."""
    classes = list(values)
    wanted = set(names)
    used = {owner.sha256: owner for (_, name), owner in _OWNERS.items() if name in wanted}
    for plugin in _LOADED.values():
        # By identity: a class may have lost its name to a newer version, and is still this one.
        if any(value is cls for value in plugin.entries.values() for cls in classes):
            used[plugin.sha256] = plugin
    return [plugin.row() for plugin in sorted(used.values(), key=lambda p: (p.name, p.sha256))]


def name_of(cls: type[Any]) -> str | None:
    """Return the name under which a plugin registered a class, also after a newer one took it."""
    for plugin in _LOADED.values():
        for (_, name), value in plugin.entries.items():
            if value is cls:
                return name
    return None


def recall(rows: object, exact: bool = True) -> None:
    """Load the plugins that an experiment records, where the user has given or installed them.

    Raise PluginMissing where one is not known here. With `exact`, another version that the user
    gave instead is refused; without, it will do where the recorded one is not known.
    """
    for name, sha256 in _checked(rows):
        load_installed()
        given = _GIVEN.get(name)
        if exact and given is not None and given.sha256 != sha256:
            raise PluginMissing(_changed(name, sha256, given))
        known = _LOADED.get(sha256) or _recalled(name, sha256) or given
        if known is None:
            raise PluginMissing(_missing(name, sha256))
        if known.sha256 == sha256:
            # The same bytes under another name are the same plugin, and the same run.
            known.name = name
        known.activate()


def _checked(rows: object) -> Iterator[tuple[str, str]]:
    """Yield name and hash of each recorded plugin; the rows may come from anybody's file."""
    if not isinstance(rows, list) or len(rows) > _MAX_ROWS:
        raise UserError(f"plugins must be a list of at most {_MAX_ROWS} tables: restore the file")
    for row in rows:
        name = row.get("name") if isinstance(row, Mapping) else None
        sha256 = row.get("sha256") if isinstance(row, Mapping) else None
        if not isinstance(name, str) or not name.isprintable() or len(name) > 200:
            raise UserError("a plugin's name must be a line of text: restore the file")
        if not isinstance(sha256, str) or not _HASH.fullmatch(sha256):
            raise UserError(f"plugin {name}: sha256 must be 64 hexadecimal digits")
        yield name, sha256


def _changed(name: str, sha256: str, given: Plugin) -> str:
    remedy = "restore it"
    if (remembered_folder() / f"{sha256}.py").is_file():
        remedy = "leave out --plugin, and the version it began with is used"
    return (
        f"{name} is not what this run began with (sha256 {sha256[:12]}… then, "
        f"{given.sha256[:12]}… now): {remedy}, or start a new run"
    )


def _missing(name: str, sha256: str) -> str:
    what = f"this needs the plugin {name} (sha256 {sha256[:12]}…), which is not known here"
    package = name.removeprefix("package ")
    if name != package:
        broken = "".join(f" ({why})" for why in _BROKEN.values())
        return f"{what}{broken}: pip install {package}"
    if name.startswith("notebook "):
        return f"{what}: register it in this notebook first, or put it into a file"
    return f"{what}: give it with --plugin {name}"


def options() -> list[str]:
    """Return the options by which a command gets the same plugin files."""
    return [word for path in dict.fromkeys(_FILES) for word in ("--plugin", path)]


def sources(kind: str) -> dict[str, str]:
    """Return where each name of a kind comes from that a plugin has registered."""
    return {name: plugin.name for (of, name), plugin in _OWNERS.items() if of == kind}


def broken() -> list[str]:
    """Return why installed packages could not be loaded, a line for each."""
    return list(_BROKEN.values())
