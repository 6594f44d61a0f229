"""Volcano's actions `gangpreempt` and `gangreclaim`: preempt and reclaim execute them, which evict whole gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from capcard_sched.framework.api.arguments import NO_DOMAIN_LIMIT, ArgumentReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.problems import ConfProblems, Path

_MAX_DOMAINS: Final = "maxDomains"


class GangAction(NamedTuple):
    """What executes an action of gang-aware eviction."""

    action: str
    #: Switch of the votes of plugin gang, which protect gangs.
    switch: str
    #: Further arguments of the action that executes it.
    arguments: Mapping[str, object]


GANG_ACTIONS: Final = {
    "gangpreempt": GangAction("preempt", "enablePreemptable", {"lower_priority_only": True}),
    "gangreclaim": GangAction("reclaim", "enableReclaimable", {}),
}


class GangEvictionArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of both actions."""

    #: Whether a gang below its minimum is evicted whole; otherwise only members beyond the minimum are evicted.
    allow_whole_bundle: bool = msgspec.field(name="allowWholeBundle", default=True)
    #: Accepted for compatibility, ignored with a warning: `NO_DOMAIN_LIMIT`.
    max_domains: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name=_MAX_DOMAINS, default=8)


class GangActionReader:
    """The gang actions of one scheduler-conf."""

    def __init__(self, problems: ConfProblems, known: tuple[str, ...]) -> None:
        """`known`: names of registered actions, which take precedence."""
        self._problems = problems
        #: By name, those that no registered action has.
        self.known = {name: gang for name, gang in GANG_ACTIONS.items() if name not in known}
        #: Those of the list of actions, by name.
        self.listed: dict[str, GangAction] = {}
        #: Names of the list that their own action executes.
        self._plain: set[str] = set()

    def resolve(self, name: str, path: Path) -> str | None:
        """The action that executes a listed one; None for one that another name of the list executes already."""
        gang = self.known.get(name)
        target = name if gang is None else gang.action
        others = {one for one, other in self.listed.items() if other.action == target and one != name}
        if gang is None:
            self._plain.add(name)
        else:
            others |= {target} & self._plain
            if name not in self.listed:
                text = f'action "{name}" is executed by action {target}, which evicts whole gangs'
                self._problems.warning(path, text)
            self.listed[name] = gang
        if others:
            names = " and ".join(f'"{one}"' for one in sorted({name, *others}))
            self._problems.warning(path, f"actions {names} are one action here; it runs once")
            return None
        return target

    def read(self, raw: Mapping[str, tuple[dict[str, object], Path]]) -> dict[str, bool]:
        """The switches of plugin gang that the listed actions set. `raw`: arguments of actions with their paths."""
        switches = {}
        for name, gang in self.known.items():
            values, path = raw.get(name, ({}, ("configurations",)))
            reader = ArgumentReader(self._problems, path, f"action {name}")
            arguments = reader.decode(GangEvictionArguments, values)
            if values.get(_MAX_DOMAINS) is not None:
                reader.warning(_MAX_DOMAINS, NO_DOMAIN_LIMIT)
            if name in self.listed:
                switches[gang.switch] = not arguments.allow_whole_bundle
        return switches

    def arguments_of(self, action: str, arguments: msgspec.Struct) -> msgspec.Struct:
        """The arguments of an action, with those of the gang action that it executes alone."""
        found = [gang for gang in self.listed.values() if gang.action == action and action not in self._plain]
        return msgspec.structs.replace(arguments, **found[0].arguments) if found else arguments
