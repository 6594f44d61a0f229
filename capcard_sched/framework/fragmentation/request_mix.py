"""The mix of requests: the kinds of pods that request devices, each with its share of all requested devices."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CardSyntaxError, parse_card_name
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.objects import PodObject
from capcard_sched.model.pod_template import template_of
from capcard_sched.model.quantity import QuantityError
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.task_class import TaskClass

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

    from capcard_sched.framework.api.shared_devices import SharedDevices
    from capcard_sched.model.job import Job, Task

#: Kinds of a mix: the others request few devices. With 16 the saturated trace allocates as many GPUs within 0.1 %.
MOST_KINDS: Final = 64


class RequestKind(NamedTuple):
    """What one kind of pods requests."""

    #: Milli-CPU and bytes.
    cpu: int
    memory: int
    #: Resource that counts whole devices and its thousandths; "" and 0 when devices are shared.
    resource: str
    amount: int
    #: Card models that it accepts; empty for any.
    cards: tuple[str, ...]
    #: The request of shared devices; None without.
    shared: Hashable | None = None


class MixEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of pods in the argument `mix`."""

    #: Requests of one pod, by resource name.
    resources: dict[str, str | int | float]
    #: Annotations of the pod that name card models, as `volcano.sh/card.name: "A|B"`.
    annotations: dict[str, str] = {}
    #: How many such pods there are, in proportion to the other entries.
    weight: int = 1


def classes_of_tasks(tasks: Iterable[Task]) -> Counter[TaskClass]:
    """The classes of pods, as before they were placed, with their numbers. O(pods)."""
    return Counter(task.cls.unplaced or task.cls for task in tasks)


def classes_of_entries(entries: Iterable[MixEntry]) -> Counter[TaskClass]:
    return Counter({class_of(entry): entry.weight for entry in entries})


def kinds_of(
    classes: Counter[TaskClass], resources: Collection[str], shared: SharedDevices | None
) -> Counter[RequestKind]:
    """The kinds of the pods that request devices, with their numbers. `resources`: those that count devices."""
    found: Counter[RequestKind] = Counter()
    for cls, count in classes.items():
        kind = kind_of(cls, resources, shared)
        if kind is not None:
            found[kind] += count
    return found


def class_of(entry: MixEntry) -> TaskClass:
    """A class of pods with the requests of an entry. Raises QuantityError and msgspec.ValidationError."""
    template = template_of(msgspec.convert(_pod_of(entry), PodObject))
    fields = {each.name: getattr(template, each.name) for each in dataclasses.fields(template)}
    return TaskClass(**fields, id=-1, namespace="", best_effort=False, annotations=entry.annotations, owner_kind="")


def _pod_of(entry: MixEntry) -> dict[str, Any]:
    resources = dict.fromkeys(("requests", "limits"), entry.resources)
    return {"metadata": {"name": "mix"}, "spec": {"containers": [{"name": "main", "resources": resources}]}}


def entry_problem(entry: MixEntry) -> str:
    """What is wrong with an entry of `mix`; "" for nothing."""
    try:
        class_of(entry)
    except (QuantityError, msgspec.ValidationError) as error:
        return str(field_problem(error, _pod_of(entry)))
    return "" if entry.weight > 0 else "weight is not above 0"


def kind_of(cls: TaskClass, resources: Collection[str], shared: SharedDevices | None) -> RequestKind | None:
    """The kind of the pods of a class; None when they request no devices. `resources`: those that count devices."""
    requests = cls.requests
    cpu, memory = requests.get(CPU, 0), requests.get(MEMORY, 0)
    request = None if shared is None else shared.request_of(cls)
    if request is not None:
        return RequestKind(cpu, memory, "", 0, (), request)
    amount, resource = max([(requests.get(name, 0), name) for name in resources], default=(0, ""))
    if amount <= 0:
        return None
    try:
        cards = parse_card_name(cls.annotations.get(CARD_NAME) or cls.annotations.get(CARD_NAME_ALIAS) or "")
    except CardSyntaxError:
        cards = ()
    return RequestKind(cpu, memory, resource, amount, cards)


def largest(kinds: Counter[RequestKind], amounts: Mapping[RequestKind, int]) -> list[tuple[RequestKind, int]]:
    """The kinds with the most requested devices, and those amounts, largest first.

    `amounts`: thousandths of a device that one pod requests.
    """
    requested = [(kind, count * amounts[kind]) for kind, count in kinds.items() if count * amounts[kind] > 0]
    return sorted(requested, key=lambda each: (-each[1], each[0][:5]))[:MOST_KINDS]


def largest_gang(jobs: Iterable[Job], resources: Collection[str], shared: SharedDevices | None) -> RequestKind | None:
    """The kind of most pods of the gang that waits for the most whole devices; None without one. O(waiting pods).

    Of gangs that wait for equally many, the first by key.
    """
    found: list[tuple[int, str, RequestKind]] = []
    for job in jobs:
        if max(1, job.ready_tasks) < job.min_available <= job.ready_tasks + len(job.pending):
            kinds = kinds_of(classes_of_tasks(job.pending.values()), resources, shared)
            amounts = {kind: count * kind.amount for kind, count in kinds.items() if kind.amount}
            if amounts:
                kind = min(amounts, key=lambda each: (-amounts[each], each[:5]))
                found.append((-sum(amounts.values()), job.key, kind))
    return min(found)[2] if found else None


def smallest(kinds: Iterable[RequestKind]) -> list[RequestKind]:
    """The kinds without those of which another requests the same devices and no more cpu and memory."""
    same: dict[tuple[Any, ...], list[RequestKind]] = {}
    for kind in sorted(kinds, key=lambda each: each[:2]):
        others = same.setdefault(kind[2:], [])
        if not others or kind.memory < others[-1].memory:
            others.append(kind)
    return [kind for found in same.values() for kind in found]
