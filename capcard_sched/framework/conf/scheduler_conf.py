"""The scheduler-conf: the actions, the plugins by tier, and their arguments.

The whole document is checked before any of it takes effect, and all problems are reported at once. Volcano's files load
unchanged: irregular spellings are accepted, and unknown parts produce warnings.
"""

from __future__ import annotations

import hashlib
import pkgutil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.framework.api.arguments import ArgumentReader
from capcard_sched.framework.api.hooks import FIXED_SWITCHES, SWITCHES
from capcard_sched.framework.api.problems import ConfProblem, ConfProblems, Path, nearest, shown, shown_text
from capcard_sched.framework.conf.gang_actions import GangActionReader
from capcard_sched.framework.conf.metrics_section import read_metrics
from capcard_sched.framework.conf.node_groups_section import ENTRY_FORM, KEYS, read_node_group
from capcard_sched.framework.conf.registry import RegistryError
from capcard_sched.model.autoscaled_groups import AutoscaledGroup
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS, CardLabels
from capcard_sched.model.distributions import install_hint, not_installed
from capcard_sched.model.yaml_reader import YamlError, read_document
from capcard_sched.validation.hint_checks import QuotaPlugins

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from capcard_sched.framework.api.plugin import Plugin
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.session.action import Action

_TOP_KEYS: Final = ("actions", "tiers", "configurations", "metrics", "nodeGroups")
_ACTIONS_FORM: Final = 'a string of names such as "enqueue, allocate, backfill"'
_PLUGIN_FORM: Final = "a map such as {name: gang}"


class PluginOption(msgspec.Struct, frozen=True):
    """One entry of a tier."""

    name: str
    #: Every switch of `framework.api.hooks.SWITCHES`, defaults filled in.
    switches: dict[str, bool]
    #: An instance of the plugin's `Arguments`.
    arguments: msgspec.Struct
    #: As in the document, for display.
    raw_arguments: dict[str, Any]


class Conf(msgspec.Struct, frozen=True):
    """A valid scheduler-conf. No plugin occurs twice; actions may, and then run twice."""

    actions: tuple[str, ...]
    #: Tiers are outer, plugins inner, in file order. Tiers without a usable plugin are kept, empty.
    tiers: tuple[tuple[PluginOption, ...], ...]
    #: Arguments of every action in `actions`, defaults included.
    action_arguments: dict[str, msgspec.Struct]
    #: The `metrics` map: the source of node load (`framework.conf.metrics_section`).
    metrics: dict[str, str]
    #: Nodes that an autoscaler adds; with one, the size of the cluster keeps no job from admission.
    node_groups: tuple[AutoscaledGroup, ...]
    #: 16 hexadecimal digits over the content without comments and layout: equal confs need no reload.
    hash: str

    def option(self, plugin: str) -> PluginOption | None:
        return next((option for tier in self.tiers for option in tier if option.name == plugin), None)

    @property
    def quota_plugins(self) -> QuotaPlugins:
        """What decides which limits of queues have an effect."""
        capacity = self.option("capacity")
        names = frozenset(option.name for tier in self.tiers for option in tier)
        cards, predicates = self.option("capacity-card"), self.option("predicates")
        arguments = None if cards is None else cards.arguments
        of_capacity = None if capacity is None else capacity.arguments
        return QuotaPlugins(
            names,
            is_tree=capacity is not None and capacity.switches["enableHierarchy"],
            unnamed_cards=getattr(arguments, "unnamed_cards", "off"),
            device_counts=getattr(of_capacity, "dynamic_resource_allocation", False),
            device_capacities=getattr(of_capacity, "dra_consumable_capacity", False),
            allocates_claims=predicates is None or getattr(predicates.arguments, "dynamic_resources", True),
            unlimited_cards=getattr(arguments, "queues_without_card_quota", "none") == "unlimited",
            card_labels=(None if cards is None else _card_labels(cards)) or DEFAULT_CARD_LABELS,
        )


class ConfResult(NamedTuple):
    """`conf` is None exactly when some problem is an error."""

    conf: Conf | None
    problems: tuple[ConfProblem, ...]


class ConfError(ValueError):
    """A required scheduler-conf is invalid; the text is its errors, one per line."""

    def __init__(self, problems: tuple[ConfProblem, ...]) -> None:
        """`problems`: all of them, warnings included."""
        self.problems = problems
        super().__init__("\n".join(problem.render() for problem in problems if problem.severity == "error"))


def default_text() -> str:
    """The text of the built-in scheduler-conf, `config/scheduler.yaml`."""
    text = pkgutil.get_data("capcard_sched.config", "scheduler.yaml")
    if text is None:
        raise FileNotFoundError("capcard_sched/config/scheduler.yaml")
    return text.decode()


def default_conf(registry: Registry) -> Conf:
    """The built-in scheduler-conf. Raises ConfError when the registry lacks one of its plugins."""
    result = parse_conf(default_text(), registry=registry)
    if result.conf is None or result.problems:
        raise ConfError(result.problems)
    return result.conf


def parse_conf(text: str | bytes, *, registry: Registry) -> ConfResult:
    """Checks a scheduler-conf as a whole. Raises nothing, whatever the text is.

    Errors: unreadable text, wrong structure, wrong type of a switch, a structured argument of the wrong form, a plugin
    that cannot be imported, proportion beside hierarchical drf. Warnings: unknown keys, plugins, actions and arguments,
    scalar arguments of the wrong type (their default is used), and an empty document, which selects the built-in one.
    """
    try:
        document = read_document(text)
    except YamlError as error:
        return ConfResult(None, (ConfProblem("error", "", str(error), line=error.line),))
    problems = ConfProblems(document.lines)
    top = document.value
    if top is None or top == {} or (isinstance(top, str) and not top.strip()):
        problems.warning((), "the scheduler-conf is empty; the built-in default is used", accepted=", ".join(_TOP_KEYS))
        conf, more = parse_conf(default_text(), registry=registry)
        return ConfResult(conf, (*problems.found, *more))
    if not isinstance(top, dict):
        problems.error((), f"expected a map, got {shown(top)}", accepted=f"a map with {', '.join(_TOP_KEYS)}")
    elif not any(key in top for key in _TOP_KEYS):
        _nothing_known(problems, top)
    else:
        conf = _Parser(registry, problems).conf(top)
        if not problems.rejected:
            return ConfResult(conf, tuple(problems.found))
    return ConfResult(None, tuple(problems.found))


def _nothing_known(problems: ConfProblems, top: dict[str, Any]) -> None:
    if "kind" in top and "data" in top:
        hint = "this is a Kubernetes object: pass the text under one key of its `data`"
    else:
        hint = next(filter(None, (nearest(key, _TOP_KEYS) for key in top)), "")
    names = ", ".join(shown_text(key) for key in list(top)[:5])
    problems.error((), f"no key of a scheduler-conf in it (found {names})", hint=hint, accepted=", ".join(_TOP_KEYS))


def _with_switches(option: PluginOption, switches: Mapping[str, bool]) -> PluginOption:
    """The entry of plugin gang with these switches; another one as it is."""
    if option.name != "gang" or not switches:
        return option
    return msgspec.structs.replace(option, switches={**option.switches, **switches})


def _card_labels(option: PluginOption) -> CardLabels | None:
    """The labels of cards that an entry of capacity-card names; None for the default."""
    given, devices = getattr(option.arguments, "card_labels", None), getattr(option.arguments, "card_devices", ())
    return CardLabels(given, devices=devices) if given or devices else None


class _Parser:
    """One pass over one document. Every method records its problems and returns the valid part."""

    def __init__(self, registry: Registry, problems: ConfProblems) -> None:
        self._registry = registry
        self._problems = problems
        #: Plugin name to the path of its first entry.
        self._listed: dict[str, Path] = {}
        self._gang_actions = GangActionReader(problems, registry.action_names())

    def conf(self, top: dict[str, Any]) -> Conf:
        self._unknown_keys((), top, _TOP_KEYS)
        actions = self._actions(top.get("actions"))
        tiers = self._tiers(top)
        raw_actions = self._configurations(top.get("configurations"))
        gang = self._gang_actions
        action_arguments = {
            name: gang.arguments_of(
                name, self._arguments(part, f"action {name}", *raw_actions.get(name, ({}, ("configurations",))))
            )
            for name, part in actions
        }
        switches = gang.read(raw_actions)
        tiers = tuple(tuple(_with_switches(option, switches) for option in tier) for tier in tiers)
        for name, written in raw_actions.items():
            if name not in action_arguments and name not in gang.known:  # unused, but checked all the same
                part = self._part("action", name, ("configurations",))
                if part is not None:
                    self._arguments(part, f"action {name}", *written)
        metrics = self._metrics(top.get("metrics"))
        node_groups = self._node_groups(top.get("nodeGroups"), tiers)
        names = tuple(name for name, _ in actions)
        self._combinations(tiers, names)
        content = (
            names,
            [[(option.name, option.switches, option.raw_arguments) for option in tier] for tier in tiers],
            {name: raw_actions[name][0] for name in (*names, *gang.listed) if name in raw_actions},
            metrics,
            *sorted(gang.listed),
            *node_groups,
        )
        digest = hashlib.sha256(msgspec.json.encode(content, order="deterministic", enc_hook=repr)).hexdigest()
        return Conf(names, tiers, action_arguments, metrics, node_groups, digest[:16])

    # --- actions ----------------------------------------------------------------------------------------------------

    def _actions(self, raw: object) -> list[tuple[str, type[Action]]]:
        path: Path = ("actions",)
        if raw is None or (isinstance(raw, str) and not raw.strip(" \t\n,")):
            default = read_document(default_text()).value["actions"]
            self._problems.warning(
                path if raw is not None else (),
                f'no actions; the built-in "{default}" are used',
                accepted=_ACTIONS_FORM,
            )
            raw = default
        if not isinstance(raw, str):
            self._problems.error(path, f"expected a string, got {shown(raw)}", accepted=_ACTIONS_FORM)
            return []
        found = []
        for written in filter(None, map(str.strip, raw.split(","))):
            name = self._gang_actions.resolve(written, path)
            part = self._part("action", name, path) if name is not None else None
            if name is not None and part is not None:
                found.append((name, part))
        if not found and not self._problems.rejected:
            self._problems.error(
                path, "none of the actions is known", accepted=", ".join(self._registry.action_names())
            )
        return found

    def _configurations(self, raw: object) -> dict[str, tuple[dict[str, Any], Path]]:
        """Raw arguments by action, with their path; the first entry of a name counts."""
        found: dict[str, tuple[dict[str, Any], Path]] = {}
        known = (*self._registry.action_names(), *self._gang_actions.known)
        for path, entry in self._entries(("configurations",), raw, "a list of maps with name and arguments"):
            self._unknown_keys(path, entry, ("name", "arguments"))
            name = self._name(path, entry, "{name: allocate, arguments: {}}")
            arguments = self._map((*path, "arguments"), entry.get("arguments"))
            if name is None:
                continue
            if name not in known:
                hint = nearest(name, known)
                self._problems.warning((*path, "name"), f'unknown action "{shown_text(name)}"; skipped', hint=hint)
            elif name in found:
                self._problems.warning((*path, "name"), f'action "{name}" is configured twice; the first entry counts')
            else:
                found[name] = (arguments, (*path, "arguments"))
        return found

    # --- tiers ------------------------------------------------------------------------------------------------------

    def _tiers(self, top: dict[str, Any]) -> tuple[tuple[PluginOption, ...], ...]:
        raw = top.get("tiers")
        if raw is None:
            self._problems.warning(("tiers",) if "tiers" in top else (), "no tiers; the built-in ones are used")
            raw = read_document(default_text()).value["tiers"]
        tiers = []
        for path, tier in self._entries(("tiers",), raw, "a list of maps with plugins"):
            self._unknown_keys(path, tier, ("plugins",))
            options = []
            for place, entry in self._entries((*path, "plugins"), tier.get("plugins"), f"a list, each {_PLUGIN_FORM}"):
                option = self._option(place, entry)
                if option is not None:
                    options.append(option)
            tiers.append(tuple(options))
        if not any(tiers) and not self._problems.rejected:
            self._problems.warning(("tiers",), "no plugin is enabled: jobs are placed wherever their requests fit")
        return tuple(tiers)

    def _option(self, path: Path, entry: dict[str, Any]) -> PluginOption | None:
        self._unknown_keys(path, entry, ("name", "arguments", *SWITCHES))
        switches = dict(SWITCHES)
        for switch in SWITCHES:
            value = entry.get(switch)
            if isinstance(value, bool):
                switches[switch] = value
                if not value and switch in FIXED_SWITCHES:
                    self._problems.warning((*path, switch), f"has no effect: {FIXED_SWITCHES[switch]}")
            elif value is not None:
                self._problems.error((*path, switch), f"expected true or false, got {shown(value)}")
        arguments_path = (*path, "arguments")
        raw = self._map(arguments_path, entry.get("arguments"))
        name = self._name(path, entry, _PLUGIN_FORM)
        if name is None:
            return None
        first = self._listed.setdefault(name, path)
        part = self._part("plugin", name, (*path, "name"))
        if part is None:
            return None
        if first is not path:
            self._problems.warning(
                (*path, "name"),
                f'plugin "{name}" is listed twice; the first entry and its arguments count, this one is skipped',
            )
            return None
        arguments = self._arguments(part, f"plugin {name}", raw, arguments_path)
        return PluginOption(name, switches, arguments, raw)

    def _combinations(self, tiers: tuple[tuple[PluginOption, ...], ...], actions: Collection[str]) -> None:
        """Problems of plugin combinations."""
        tier_of = {option.name: number for number, tier in enumerate(tiers) for option in tier}
        drf = next((option for tier in tiers for option in tier if option.name == "drf"), None)
        if drf is not None and drf.switches["enableHierarchy"] and "proportion" in tier_of:
            path = (*self._listed["drf"], "enableHierarchy")
            message = "proportion and drf with hierarchy enabled conflicts"
            if tier_of["drf"] == tier_of["proportion"]:
                self._problems.error(path, message, hint="drop proportion, or enableHierarchy")
            else:
                self._problems.warning(path, f"{message}: both order the queues, the earlier tier decides")
        if "budget" in self._listed and "enqueue" not in actions:
            message = "without action enqueue a spent CardBudget with whenSpent: stop has no effect"
            self._problems.warning((*self._listed["budget"], "name"), message, hint="add enqueue to the actions")
        if "capacity-card" in self._listed:
            for other in ("capacity", "proportion"):
                if other in self._listed:
                    self._problems.warning(
                        (*self._listed[other], "name"),
                        f'"{other}" beside "capacity-card" is a second quota of cpu and memory; jobs must pass both',
                    )

    # --- parts and their arguments ----------------------------------------------------------------------------------

    def _part(self, kind: str, name: str, path: Path) -> Any:
        """The class, or None with a problem recorded."""
        registry = self._registry
        names = registry.plugin_names() if kind == "plugin" else registry.action_names()
        try:
            part: type[Plugin | Action] | None = registry.plugin(name) if kind == "plugin" else registry.action(name)
        except RegistryError as error:
            self._problems.error(path, f'{kind} "{name}" cannot be used: {error}')
            return None
        if part is None and (message := not_installed(kind, name)):
            self._problems.warning(path, f"{message}; skipped", hint=f"install it with {install_hint(name)}")
        elif part is None:
            self._problems.warning(
                path,
                f'unknown {kind} "{shown_text(name)}"; skipped',
                hint=nearest(name, names),
                accepted=", ".join(names),
            )
        return part

    def _arguments(self, part: type[Plugin | Action], owner: str, raw: dict[str, Any], path: Path) -> msgspec.Struct:
        try:
            return part.parse_arguments(raw, ArgumentReader(self._problems, path, owner))
        except Exception as error:  # noqa: BLE001 - a plugin must not stop the daemon
            self._problems.error(path, f"{owner} cannot read its arguments: {type(error).__name__}: {error}")
            return msgspec.Struct()

    def _metrics(self, raw: object) -> dict[str, str]:
        return read_metrics(self._map(("metrics",), raw), self._problems)

    def _node_groups(self, raw: object, tiers: tuple[tuple[PluginOption, ...], ...]) -> tuple[AutoscaledGroup, ...]:
        """The groups in file order. Their cards follow from labels by the rule of capacity-card."""
        options = [option for tier in tiers for option in tier if option.name == "capacity-card"]
        given = next(map(_card_labels, options), None)
        found: dict[str, AutoscaledGroup] = {}
        for path, entry in self._entries(("nodeGroups",), raw, f"a list, each {ENTRY_FORM}"):
            self._unknown_keys(path, entry, KEYS)
            name = self._name(path, entry, ENTRY_FORM)
            if name in found:
                self._problems.error((*path, "name"), f'group "{name}" is listed twice', accepted="a name of its own")
            elif name is not None:
                group = read_node_group(path, entry, name, given or DEFAULT_CARD_LABELS, self._problems)
                found.update({} if group is None else {name: group})
        return tuple(found.values())

    # --- structure --------------------------------------------------------------------------------------------------

    def _entries(self, path: Path, raw: object, accepted: str) -> Iterable[tuple[Path, dict[str, Any]]]:
        """The maps of a list, each with its path; null is an empty list."""
        if raw is None:
            return
        if not isinstance(raw, list):
            self._problems.error(path, f"expected a list, got {shown(raw)}", accepted=accepted)
            return
        for index, entry in enumerate(raw):
            if isinstance(entry, dict):
                yield (*path, index), entry
            else:
                self._problems.error((*path, index), f"expected a map, got {shown(entry)}", accepted=accepted)

    def _map(self, path: Path, raw: object) -> dict[str, Any]:
        if raw is None or isinstance(raw, dict):
            return raw or {}
        self._problems.error(path, f"expected a map, got {shown(raw)}")
        return {}

    def _name(self, path: Path, entry: dict[str, Any], accepted: str) -> str | None:
        name = entry.get("name")
        if isinstance(name, str) and name.strip():
            return name.strip()
        if name is None:
            self._problems.error((*path, "name"), "is required", accepted=accepted)
        else:
            self._problems.error((*path, "name"), f"expected a name, got {shown(name)}", accepted=accepted)
        return None

    def _unknown_keys(self, path: Path, entry: dict[str, Any], known: tuple[str, ...]) -> None:
        for key in entry:
            if key not in known:
                hint = nearest(key, known)
                accepted = "" if hint else ", ".join(known)
                self._problems.warning((*path, key), "unknown key; it is ignored", hint=hint, accepted=accepted)
