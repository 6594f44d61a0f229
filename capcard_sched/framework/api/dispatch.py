"""The dispatcher of all hooks, derived from the hook table."""

from __future__ import annotations

from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from capcard_sched.framework.api.hooks import BY_METHOD, DECORATED, HOOKS, Hook
from capcard_sched.framework.api.node_hooks import declared_hooks
from capcard_sched.framework.api.plugin import Protection, Reads, VictimDecision
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import VOTE_PERMIT, VOTE_REJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from capcard_sched.framework.api.node_hooks import NodeReads
    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.api.plugin import Plugin


#: Plugin name and its method.
Entry = tuple[str, "Callable[..., Any]"]


class Judgement(NamedTuple):
    """The candidates that may be evicted, and by uid the cause or plugin that protects each of the others."""

    victims: list[Any]
    kept: dict[str, str]
    #: Whether a tier decided without the later ones.
    by_tiers: bool


class BoundNodeHook(NamedTuple):
    """A filter or score of a plugin."""

    plugin: str
    reads: NodeReads
    #: Whether it applies to a signature; None: to all. Without a guard, as `call`.
    when: Callable[[PodSignature], bool] | None
    #: The plain method: it runs for every few nodes that change, and a guard around each call costs too much.
    call: Callable[..., Any]


class HookFailed(Exception):  # noqa: N818 - the name states the event; HookError is its record
    """A plugin raised. Carries the plugin and the hook, so that only the job or task at hand is skipped."""

    def __init__(self, plugin: str, hook: str, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.plugin = plugin
        self.hook = hook
        self.error = error


def error_text(error: BaseException) -> str:
    """Type and message of an exception; of a HookFailed those of the plugin's exception."""
    return str(error) if isinstance(error, HookFailed) else f"{type(error).__name__}: {error}"


def run_hook(plugin: str, hook: str, call: Callable[..., Any], *arguments: object) -> Any:
    """The result of a hook. Raises HookFailed when the plugin raises."""
    try:
        return call(*arguments)
    except Exception as error:
        raise HookFailed(plugin, hook, error) from error


class Dispatch:
    """The plugin methods that implement each hook, by tier. Resolved once per scheduler-conf."""

    def __init__(self, tiers: Sequence[Sequence[tuple[Plugin, dict[str, bool]]]]) -> None:
        """`tiers`: per tier, plugin instances with their conf switches."""
        #: Plugins in conf order, without duplicates.
        self.plugins: list[Plugin] = []
        for tier in tiers:
            for plugin, _ in tier:
                if plugin not in self.plugins:
                    self.plugins.append(plugin)
        #: What all plugins together read.
        self.reads = reduce(or_, (plugin.reads for plugin in self.plugins), Reads(0))
        #: The methods themselves: a guard around each call costs more than most hooks that run per job or pod.
        self._tiers: dict[str, list[list[Entry]]] = {}
        #: Filters and scores in conf order, and in order of definition within a plugin.
        self.filters, self.scores = ([*self._node_hooks(kind, tiers)] for kind in ("filter", "score"))
        for hook in HOOKS:
            method, plain = hook.method, [self._resolve(hook, tier) for tier in tiers]
            if method == "on_allocate":
                plain = [self._allocators_first(plain)]
            self._tiers[method] = [tier for tier in plain if tier]
        #: The same without tiers.
        self._entries = {method: [entry for tier in found for entry in tier] for method, found in self._tiers.items()}
        voters = {name for name, _ in self._entries["job_enqueueable"]}
        #: Whether every plugin that votes on admission also declares an `admission_version`.
        self.has_admission_versions = voters == {name for name, _ in self._entries["admission_version"]}
        hooks = ("overused", "allocatable", "allocatable_many", "preemptive")
        limiting = {name for hook in hooks for name, _ in self._entries[hook]}
        #: Whether every plugin that limits allocation also declares an `allocation_version`.
        self.has_allocation_versions = limiting <= {name for name, _ in self._entries["allocation_version"]}

    def eviction_versions(self, hook: str) -> list[Entry] | None:
        """The hooks `eviction_version` of the plugins that take part in evictions of a hook; None when one has none.

        `hook`: "preemptable" or "reclaimable".
        """
        others = self._entries["victim_queue_order"] if hook == "reclaimable" else []
        voters = {name for name, _ in (*self._entries[hook], *others)}
        found = [(name, call) for name, call in self.entries("eviction_version") if name in voters]
        return found if len(found) == len(voters) else None

    def has_victims_by_usage(self, hook: str) -> bool:
        """Whether victims of `preemptable` or `reclaimable` depend on the usage of the preemptor's queue or job."""
        voters = {name for name, _ in self._entries[hook]}
        return any(plugin.victims_by_usage for plugin in self.plugins if plugin.name in voters)

    @staticmethod
    def _node_hooks(kind: str, tiers: Sequence[Sequence[tuple[Plugin, dict[str, bool]]]]) -> Iterator[BoundNodeHook]:
        switch = BY_METHOD[kind].switch or ""
        for plugin, switches in (entry for tier in tiers for entry in tier):
            for name, (declared_kind, reads, when) in declared_hooks(type(plugin)).items():
                method = plugin.method(name)
                if declared_kind == kind and method is not None and switches.get(switch, True):
                    bound = None if when is None else partial(when, plugin)
                    yield BoundNodeHook(plugin.name, reads, bound, method)

    def _allocators_first(self, tiers: Sequence[Sequence[Entry]]) -> list[Entry]:
        """The entries of all tiers; first those of plugins that allocate claims: quotas charge the devices."""
        allocating = {plugin.name for plugin in self.plugins if plugin.supports_claims}
        return sorted([entry for tier in tiers for entry in tier], key=lambda entry: entry[0] not in allocating)

    @staticmethod
    def _resolve(hook: Hook, tier: Sequence[tuple[Plugin, dict[str, bool]]]) -> list[Entry]:
        return [
            (plugin.name, method)
            for plugin, switches in tier
            if hook.method not in DECORATED
            and (method := plugin.method(hook.method)) is not None
            and (hook.switch is None or switches.get(hook.switch, True))
        ]

    def entries(self, method: str) -> list[Entry]:
        """(plugin name, method) of every implementation in conf order. The methods raise HookFailed."""
        return [(name, partial(run_hook, name, method, call)) for name, call in self._entries[method]]

    def plain_entries(self, method: str) -> list[Entry]:
        """The same without guards, for loops that run per job or per pod and raise HookFailed themselves."""
        return self._entries[method]

    def has(self, method: str) -> bool:
        """Whether any plugin implements the hook."""
        if method in DECORATED:
            return bool(self.filters if method == "filter" else self.scores)
        return bool(self._entries[method])

    def keys(self, method: str, subject: object, *others: object) -> tuple[Any, ...]:
        """Combine.KEYS."""
        plugin, found = "", []
        try:
            for plugin, call in self._entries[method]:  # noqa: B007 - read by the handler
                found.append(call(subject, *others) if others else call(subject))
        except Exception as error:
            raise HookFailed(plugin, method, error) from error
        return tuple(found)

    def keys_of(self, method: str, subjects: Sequence[object]) -> list[list[Any]]:
        """Combine.KEYS for many subjects: per plugin the keys of all."""
        plugin, found = "", []
        try:
            for plugin, call in self._entries[method]:  # noqa: B007 - read by the handler
                found.append(list(map(call, subjects)))
        except Exception as error:
            raise HookFailed(plugin, method, error) from error
        return found

    def first_of(self, method: str, subjects: Sequence[object]) -> list[Any]:
        """Combine.FIRST for many subjects: a plugin is called for those without a result of an earlier one."""
        plugin, found, left = "", [None] * len(subjects), list(range(len(subjects)))
        try:
            for plugin, call in self._entries[method]:  # noqa: B007 - read by the handler
                for index in left:
                    found[index] = call(subjects[index])
                left = [index for index in left if found[index] is None]
        except Exception as error:
            raise HookFailed(plugin, method, error) from error
        return found

    def notify(self, method: str, subject: object) -> None:
        """Combine.NOTIFY: calls every plugin even when one fails; raises the first failure at the end."""
        failed: HookFailed | None = None
        for plugin, call in self._entries[method]:
            try:
                call(subject)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                failed = failed or HookFailed(plugin, method, error)
        if failed is not None:
            raise failed

    def refusal(self, method: str, subject: object, *others: object) -> Refusal | None:
        """Combine.FIRST_REFUSAL."""
        plugin, result = "", None
        try:
            for plugin, call in self._entries[method]:  # noqa: B007 - read by the handler
                result = call(subject, *others) if others else call(subject)
                if result is not None:
                    break
        except Exception as error:
            raise HookFailed(plugin, method, error) from error
        return result

    def all(self, method: str, subject: object) -> bool:
        """Combine.ALL."""
        plugin = ""
        try:
            for plugin, call in self._entries[method]:  # noqa: B007 - read by the handler
                if not call(subject):
                    return False
        except Exception as error:
            raise HookFailed(plugin, method, error) from error
        return True

    def any(self, method: str, subject: object) -> bool:
        """Combine.ANY."""
        plugin = ""
        try:
            for plugin, call in self._entries[method]:  # noqa: B007 - read by the handler
                if call(subject):
                    return True
        except Exception as error:
            raise HookFailed(plugin, method, error) from error
        return False

    def votes(self, method: str, subject: object, among: Container[str] | None = None) -> tuple[bool, Refusal | None]:
        """Combine.VOTES: the result, and the refusal of the plugin that rejected where it returned one.

        `among`: names of the plugins that vote, None for all.
        """
        permitted = False
        for tier in self._tiers[method]:
            for name, call in tier:
                if among is not None and name not in among:
                    continue
                result = run_hook(name, method, call, subject)
                if isinstance(result, Refusal):
                    return False, result
                if result == VOTE_REJECT:
                    return False, None
                permitted = permitted or result == VOTE_PERMIT
            if permitted:
                return True, None
        return True, None

    def first_tier_all(self, method: str, subject: object) -> bool:
        """Combine.FIRST_TIER_ALL; false when no plugin implements the hook."""
        for tier in self._tiers[method]:
            return all(run_hook(name, method, call, subject) for name, call in tier)
        return False

    def first(self, method: str, subject: object, *others: object) -> Any:
        """Combine.FIRST: the first result that is not None, else None."""
        return self.refusal(method, subject, *others)

    def victims(self, method: str, task: object, candidates: list[Any]) -> list[Any]:
        """Combine.VICTIMS: the victims, in the order of the plugin that decided."""
        return self.judge(method, task, candidates).victims

    def judge(self, method: str, task: object, candidates: list[Any]) -> Judgement:
        """Combine.VICTIMS, with the cause that protects each of the other candidates.

        An empty intersection ends its tier and continues with the next. Every plugin of every tier is called, so that a
        `VictimDecision` counts in any tier; candidates it protects are excluded before the tiers are evaluated. If one
        requires unanimity, all tiers count as one.
        """
        unanimous = False
        protected: dict[str, str] = {}
        barred = ""
        causes: dict[tuple[str, str], str] = {}
        tiers: list[list[tuple[str, list[Any]]]] = []
        for tier in self._tiers[method]:
            results: list[tuple[str, list[Any]]] = []
            for name, call in tier:
                result = run_hook(name, method, call, task, candidates)
                if isinstance(result, VictimDecision):
                    if result.protected is None:
                        barred = barred or name
                    else:
                        for uid, cause in result.protected.items():
                            protected.setdefault(uid, cause or name)
                    unanimous = unanimous or result.unanimous
                    causes.update({(name, uid): cause for uid, cause in (result.causes or {}).items()})
                    result = result.victims
                if result is not None:
                    results.append((name, list(result)))
            tiers.append(results)
        if barred:
            kept = {task.uid: protected.get(task.uid, barred) for task in candidates}
            return Judgement([], kept, len(tiers) > 1)
        if unanimous:
            tiers = [[result for tier in tiers for result in tier]]
        by_tiers = len(tiers) > 1
        chosen: list[Any] = []
        kept = protected
        for results in tiers:
            chosen, removed = _intersect(results, protected, candidates, causes)
            if chosen:
                return Judgement(chosen, removed | protected, by_tiers)
            kept = removed | kept
        return Judgement([], kept, by_tiers)

    def protects(self, hook: str, job: object, priority: int) -> bool:
        """Whether `judge` names no pod of the job as a victim for a preemptor of the priority, whatever the order."""
        names = [name for name, _ in self._entries["protects"]]
        found = dict(zip(names, self.keys("protects", hook, job, priority), strict=True))
        voters = [[name for name, _ in tier] for tier in self._tiers[hook]]
        return any(found.get(name) is Protection.ALWAYS for tier in voters for name in tier) or all(
            any(found.get(name) for name in tier) for tier in voters
        )

    def passed(self, method: str, subjects: list[Any]) -> list[Any]:
        """Combine.FILTER: the subjects that every plugin keeps."""
        for name, call in self._entries[method]:
            subjects = list(run_hook(name, method, call, subjects))
        return subjects

    def union_first_tier(self, method: str, subject: object) -> list[Any]:
        """Combine.UNION_FIRST_TIER: the union of the first tier that returns anything, without duplicates."""
        for tier in self._tiers[method]:
            found: dict[str, Any] = {}
            for name, call in tier:
                result = run_hook(name, method, call, subject)
                for task in result or ():
                    found.setdefault(task.uid, task)
            if found:
                return list(found.values())
        return []


def _intersect(
    results: list[tuple[str, list[Any]]],
    protected: Mapping[str, str],
    candidates: list[Any],
    causes: Mapping[tuple[str, str], str],
) -> tuple[list[Any], dict[str, str]]:
    """The intersection of a tier's results without protected candidates, and the cause of each other one."""
    chosen: list[Any] | None = None
    removed: dict[str, str] = {}
    for name, result in results:
        allowed = {victim.uid for victim in result} - protected.keys()
        before = candidates if chosen is None else chosen
        chosen = [victim for victim in (result if chosen is None else chosen) if victim.uid in allowed]
        for task in before:
            if task.uid not in allowed:
                removed.setdefault(task.uid, causes.get((name, task.uid), name))
        if not chosen:
            break
    return chosen or [], removed
