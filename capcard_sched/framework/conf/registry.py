"""The registry of plugins and actions: entry points of installed packages, and a folder of Python files.

Built-in ones use entry points like any other. Only names are read at first; a module is imported, and its classes are
checked against the hook table, when a scheduler-conf names it.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from capcard_sched.framework.api.hooks import BY_METHOD, DECORATED, REPLACED
from capcard_sched.framework.api.node_hooks import declared_hooks
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.api.problems import nearest
from capcard_sched.framework.session.action import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

PLUGIN_GROUP: Final = "capcard_sched.plugins"
ACTION_GROUP: Final = "capcard_sched.actions"

_Part = TypeVar("_Part", Plugin, Action)


class RegistryError(Exception):
    """Unusable plugins or actions. The text has one line per problem, each with the class or the file."""


class _PluginSource(NamedTuple):
    """The source of a name: an entry point that is not imported yet, or a class of a file."""

    place: str
    entry: metadata.EntryPoint | None
    found: type[Any] | None


class Registry:
    """Plugins and actions by the names used in the scheduler-conf."""

    def __init__(self, plugins: Mapping[str, _PluginSource], actions: Mapping[str, _PluginSource]) -> None:
        self._plugins = dict(plugins)
        self._actions = dict(actions)
        self._loaded: dict[tuple[str, str], type[Any]] = {}

    @classmethod
    def load(cls, plugins_dir: Path | None = None) -> Registry:
        """All available names.

        Every `*.py` file of `plugins_dir` whose name does not begin with an underscore is imported, in name order; each
        Plugin or Action class it defines is registered under its `name`. Raises RegistryError when two sources claim
        one name, when a file cannot be used, or when not even the built-in entry points are installed.
        """
        entries = metadata.entry_points()
        problems: list[str] = []
        plugins = _from_entry_points(entries.select(group=PLUGIN_GROUP), problems)
        actions = _from_entry_points(entries.select(group=ACTION_GROUP), problems)
        if not plugins and not actions:
            raise RegistryError(
                f"no installed package provides entry points {PLUGIN_GROUP} and {ACTION_GROUP}: "
                "install capcard-sched into this environment (in a checkout: make demo)"
            )
        if plugins_dir is not None:
            _add_folder(plugins_dir, plugins, actions, problems)
        if problems:
            raise RegistryError("\n".join(problems))
        return cls(plugins, actions)

    @classmethod
    def of(cls, plugins: Iterable[type[Plugin]] = (), actions: Iterable[type[Action]] = ()) -> Registry:
        """A registry of exactly these classes: for tests and for embedding. Raises RegistryError as `load` does."""
        problems: list[str] = []
        found: tuple[dict[str, _PluginSource], dict[str, _PluginSource]] = ({}, {})
        for sources, kind, parts in ((found[0], "plugin", plugins), (found[1], "action", actions)):
            for part in parts:
                _claim(sources, part.name, _PluginSource(_class_place(part), None, part), problems)
                problems += _faults(part, kind)
        if problems:
            raise RegistryError("\n".join(problems))
        return cls(*found)

    def including(self, plugins: Iterable[type[Plugin]] = (), actions: Iterable[type[Action]] = ()) -> Registry:
        """These and more classes; one of the same name replaces the existing one. Raises RegistryError."""
        more = Registry.of(plugins, actions)
        return Registry({**self._plugins, **more._plugins}, {**self._actions, **more._actions})

    def plugin_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._plugins))

    def action_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._actions))

    def plugin(self, name: str) -> type[Plugin] | None:
        """The class called `name`, imported on first use; None for an unknown name. Raises RegistryError."""
        return self._class(self._plugins, "plugin", name, Plugin)

    def action(self, name: str) -> type[Action] | None:
        """The class called `name`, imported on first use; None for an unknown name. Raises RegistryError."""
        return self._class(self._actions, "action", name, Action)

    def place(self, kind: str, name: str) -> str:
        """The source of the plugin or action, for listings: its entry point or its file."""
        return (self._plugins if kind == "plugin" else self._actions)[name].place

    def _class(
        self, sources: Mapping[str, _PluginSource], kind: str, name: str, base: type[_Part]
    ) -> type[_Part] | None:
        loaded = self._loaded.get((kind, name))
        source = sources.get(name)
        if loaded is not None or source is None:
            return loaded
        found: Any = source.found
        if source.entry is not None:
            try:
                found = source.entry.load()
            except Exception as error:
                raise RegistryError(f"{source.place}: cannot be imported: {type(error).__name__}: {error}") from error
            if not (isinstance(found, type) and issubclass(found, base)):
                raise RegistryError(f"{source.place}: {found!r} is not a subclass of {base.__name__}")
            faults = _faults(found, kind)
            if not faults and found.name != name:
                faults = [f"{source.place}: the class calls itself {found.name!r}; the entry point must have that name"]
            if faults:
                raise RegistryError("\n".join(faults))
        self._loaded[kind, name] = found
        return found  # type: ignore[no-any-return]  # `base` was checked above, or when the file was read


def _from_entry_points(entries: Iterable[metadata.EntryPoint], problems: list[str]) -> dict[str, _PluginSource]:
    sources: dict[str, _PluginSource] = {}
    owners: dict[metadata.Distribution | None, str] = {None: "unknown package"}
    # A package that is on the path twice (a checkout and its installation) is one source.
    for entry in sorted({(entry.name, entry.value, entry.group): entry for entry in entries}.values(), key=str):
        if entry.dist is not None and entry.dist not in owners:
            owners[entry.dist] = entry.dist.name  # parses the metadata of the package
        place = f"entry point {entry.name} = {entry.value} ({owners[entry.dist]})"
        _claim(sources, entry.name, _PluginSource(place, entry, None), problems)
    return sources


def _claim(sources: dict[str, _PluginSource], name: str, source: _PluginSource, problems: list[str]) -> None:
    if name in sources:
        problems.append(f"{source.place}: the name {name!r} is taken by {sources[name].place}")
    else:
        sources[name] = source


# --- a folder of files ----------------------------------------------------------------------------------------------


def _add_folder(
    folder: Path, plugins: dict[str, _PluginSource], actions: dict[str, _PluginSource], problems: list[str]
) -> None:
    if not folder.is_dir():
        problems.append(f"{folder}: not a folder (--plugins-dir)")
        return
    for file in sorted(folder.glob("*.py")):
        if file.name.startswith("_"):
            continue
        try:
            classes = _classes_of(file)
        except Exception as error:  # noqa: BLE001 - external code may raise anything while it is imported
            problems.append(f"{file}: cannot be imported: {type(error).__name__}: {error}")
            continue
        if not classes:
            problems.append(f"{file}: defines no subclass of Plugin or Action")
        for part in classes:
            kind, sources = ("plugin", plugins) if issubclass(part, Plugin) else ("action", actions)
            faults = _faults(part, kind)
            problems += [f"{file}: {fault}" for fault in faults]
            if part.name:
                _claim(sources, part.name, _PluginSource(f"{file}: {part.__qualname__}", None, part), problems)


def _classes_of(file: Path) -> list[type[Plugin | Action]]:
    """The plugin and action classes that `file` itself defines, in its order."""
    module_name = f"capcard_sched_plugins_dir.{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        return []
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # structs and type hints look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, (Plugin, Action))
        and value.__module__ == module_name
        and not name.startswith("_")
    ]


# --- conformance ----------------------------------------------------------------------------------------------------


def _class_place(part: type[Any]) -> str:
    return f"{part.__module__}.{part.__qualname__}"


def _faults(part: type[Any], kind: str) -> list[str]:
    """The problems that make a class unusable, one line each."""
    place = _class_place(part)
    faults = []
    if not part.name or not isinstance(part.name, str):
        faults.append(f'{place}: has no name; add `name = "..."`, the word used in the scheduler-conf')
    if kind == "action":
        if part.execute is Action.execute:
            faults.append(f"{place}: defines no execute(session)")
        else:
            faults += _arity_faults(place, part, "execute", 1, "(session) -> None")
        return faults
    owners = [(one, owner) for one in (part, *part.Parts) for owner in one.__mro__ if owner not in Plugin.__mro__]
    hooks = declared_hooks(part)
    for one, method in ((one, name) for one, owner in owners for name in vars(owner)):
        if method.startswith("_"):
            continue
        declared = hooks.get(method)
        hook = BY_METHOD.get(method) if declared is None else BY_METHOD[declared.kind]
        if declared is None and method in DECORATED:
            faults.append(f"{place}.{method}: is declared with the decorator `@{method}(reads=...)`")
        elif declared is None and method in REPLACED:
            faults.append(f"{place}.{method}: is replaced by {REPLACED[method]}")
        elif hook is None:
            if callable(getattr(one, method)) and (hint := _resembles_hook(method)):
                faults.append(f"{place}.{method}: there is no such hook; {hint}")
        else:
            faults += _arity_faults(place, one, method, parameter_count(hook.signature), hook.signature)
    return sorted(set(faults))


def _resembles_hook(method: str) -> str:
    hint = nearest(method, BY_METHOD)
    if not hint and method.startswith("on_"):
        hint = f"known are {', '.join(sorted(name for name in BY_METHOD if name.startswith('on_')))}"
    return f"{hint} a method that is no hook begins with an underscore" if hint else ""


def parameter_count(signature: str) -> int:
    """The number of arguments in a signature of the hook table: 2 for `(queue, task) -> bool`."""
    inside = signature[1 : signature.index(")")]
    return len(inside.split(",")) if inside.strip() else 0


def _arity_faults(place: str, part: type[Any], method: str, count: int, signature: str) -> list[str]:
    implementation = getattr(part, method)
    if not callable(implementation):
        return [f"{place}.{method}: must be a method, called as {method}{signature}"]
    if inspect.iscoroutinefunction(implementation):
        return [f"{place}.{method}: must not be async: sessions do not wait"]
    static = isinstance(inspect.getattr_static(part, method), (staticmethod, classmethod))
    try:
        inspect.signature(implementation).bind(*[None] * (count if static else count + 1))
    except TypeError as error:
        return [f"{place}.{method}: is called as {method}{signature}, which does not fit: {error}"]
    except ValueError:
        return []  # a builtin without a readable signature
    return []
