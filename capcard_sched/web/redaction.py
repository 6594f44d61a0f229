"""Removes the names of objects in namespaces that a viewer may not see from texts and diagnoses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.diagnosis import JobDiagnosis

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.trials import FixSearch, SuggestedFix
    from capcard_sched.web.cluster import Cluster

#: In place of a name.
_HIDDEN: Final = "(another namespace)"


class Redactor:
    """Replaces `namespace/...` of hidden namespaces; changes nothing for a viewer of all."""

    def __init__(self, hidden: Iterable[str]) -> None:
        names = "|".join(map(re.escape, sorted(hidden, key=len, reverse=True)))
        self._name = re.compile(rf"(?<![\w./-])(?:{names})/[\w./*-]*[\w*]") if names else None
        #: A namespace as an argument: `kubectl -n team scale ...`.
        self._argument = re.compile(rf"(?<!\S)(?:-n|--namespace)[ =](?:{names})(?![\w.-])") if names else None

    def text(self, text: str) -> str:
        """A text with `(another namespace)` in place of hidden names."""
        return text if self._name is None else self._name.sub(_HIDDEN, text)

    def diagnosis(self, found: JobDiagnosis) -> JobDiagnosis:
        """A diagnosis without the names, and without the fixes that change hidden objects."""
        if self._name is None:
            return found
        if found.fixes is not None:
            found = msgspec.structs.replace(found, fixes=self._fixes(found.fixes))
        return msgspec.convert(self._clean(msgspec.to_builtins(found)), JobDiagnosis)

    def _fixes(self, found: FixSearch) -> FixSearch:
        kept = tuple(fix for fix in found.fixes if not self._names_hidden(fix))
        if len(kept) == len(found.fixes):
            return found
        reason = found.reason if kept else "the fixes change jobs in namespaces whose pods you may not get"
        return msgspec.structs.replace(found, fixes=kept, reason=reason)

    def _names_hidden(self, fix: SuggestedFix) -> bool:
        assert self._argument is not None
        costs = msgspec.structs.replace(fix, started=(), delayed=())  # these are redacted
        value = msgspec.to_builtins(costs)
        return bool(self._clean(value) != value or self._argument.search("\n".join(fix.lines)))

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return type(value)(self._clean(one) for one in value)
        if isinstance(value, dict):
            return {self._clean(key): self._clean(one) for key, one in value.items()}
        return value


def redactor_of(cluster: Cluster) -> Redactor:
    """The redactor of a viewer: the other namespaces with jobs, pods or NamespaceQueues are hidden."""
    if cluster.namespaces is None:
        return Redactor(())
    names = cluster.part("namespaces", lambda: _namespaces(cluster))
    return Redactor(name for name in names - {""} if not cluster.may_see(name))


def _namespaces(cluster: Cluster) -> set[str]:
    """The namespaces with jobs, pods or NamespaceQueues."""
    state = cluster.core.snapshot().state
    names = {job.namespace for job in state.jobs.values()} | {task.namespace for task in state.tasks.values()}
    names |= {namespace for queue in state.queues for namespace, slash, _ in [queue.partition("/")] if slash}
    for kind in ("Pod", "Job"):
        names |= {(obj.get("metadata") or {}).get("namespace") or "" for obj in cluster.objects.all_of(kind)}
    return names
