"""Equivalence classes: pods of one template share one TaskClass."""

from __future__ import annotations

import dataclasses
import hashlib
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from capcard_sched.model.pod_requests import resizes
from capcard_sched.model.pod_template import inline_volumes, template_of
from capcard_sched.model.resources import CPU, MEMORY, PODS, PODS_COLUMN
from capcard_sched.model.task_class import NO_ACCOUNTING, PodTemplate, TaskClass
from capcard_sched.model.term_limits import DEFAULT_TERM_LIMITS, limit_terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from capcard_sched.model.job import Task
    from capcard_sched.model.objects import Affinity, LabelSelector, PodAffinityTerm, PodObject
    from capcard_sched.model.pod_facts import PodFacts
    from capcard_sched.model.resources import ResourceColumns
    from capcard_sched.model.task_class import DeviceAccounting
    from capcard_sched.model.term_limits import TermLimits

_encode = msgspec.json.Encoder(order="deterministic").encode
_pack = msgspec.msgpack.Encoder().encode
_TEMPLATE_FIELDS = tuple(each.name for each in dataclasses.fields(PodTemplate))

#: Pod slots that no node has: the request of a pod that fits no node.
_NEVER_FREE: Final = 1 << 40
_NO_NAMES: Final[frozenset[str]] = frozenset()
#: Entries of the cache from encoded pod spec to class; the pods of one workload have equal specs. (10,000 pods of W1:
#: 0.52 s, 0.67 s without.)
_MOST_SPECS = 4096
#: Unused label sets that may stay cached, beyond twice the number of pods.
_SPARE = 1024
_NO_LABELS: Mapping[str, str] = {}
#: Labels of a set that is shared: each has up to 380 characters.
_MOST_SHARED_LABELS = 64
#: Bytes up to which an encoded pod spec is a key of that cache itself; a longer one is replaced by its digest.
_MOST_KEY_BYTES = 512


class ClassTable:
    """Interns task classes by content. Ids are unique for the lifetime of the table."""

    def __init__(self, columns: ResourceColumns, limits: TermLimits = DEFAULT_TERM_LIMITS) -> None:
        self._columns = columns
        self._limits = limits
        self._classes: dict[bytes, TaskClass] = {}
        #: Encoded fields of a pod that determine its class, to the class.
        self._by_spec: dict[bytes, TaskClass] = {}
        #: These fields of the last pod, and its class: the pods of a workload follow one another.
        self._last: tuple[tuple[object, ...], TaskClass] | None = None
        self._made = 0
        #: Bytes of the content of all classes, and of those that the last `prune` kept.
        self.bytes = self.bytes_in_use = 0
        self._accounting = NO_ACCOUNTING
        #: Resources with a column.
        self._offered = {CPU, MEMORY, PODS}
        #: Classes with affinity or topology spread constraints.
        self.with_terms: set[TaskClass] = set()
        #: Classes with `unoffered` resources.
        self._unoffered: set[TaskClass] = set()
        #: Requests and limits as written, of classes that are counted otherwise.
        self._written: dict[TaskClass, tuple[Mapping[str, int], Mapping[str, int]]] = {}
        #: Classes of placed pods whose devices fix the amounts, by class and amounts.
        self._placed: dict[tuple[TaskClass, tuple[tuple[str, int], ...]], TaskClass] = {}
        #: Content without the names of generated claims to a number.
        self._alike: dict[bytes, int] = {}
        #: The namespace selectors in the terms of classes that have any.
        self._namespace_selectors: dict[TaskClass, tuple[LabelSelector, ...]] = {}

    def __len__(self) -> int:
        return len(self._classes) + len(self._placed)

    @property
    def has_unoffered(self) -> bool:
        """Whether pods of some class request a resource without a column."""
        return bool(self._unoffered)

    def __iter__(self) -> Iterator[TaskClass]:
        return chain(self._classes.values(), self._placed.values())

    def of(self, pod: PodObject, facts: PodFacts, namespace: str) -> TaskClass:
        """The class of a pod. Raises QuantityError as `template_of` does."""
        fields = _class_fields(pod, facts, namespace)
        if self._last is not None and self._last[0] == fields:
            return self._last[1]
        written = None if fields is None else _encoded(fields)
        found = None if written is None else self._by_spec.get(written)
        if found is None:
            found = self._intern(pod, facts, namespace)
            if written is not None:
                if len(self._by_spec) >= _MOST_SPECS:
                    self._by_spec.clear()
                self._by_spec[written] = found
        self._last = None if fields is None else (fields, found)
        return found

    def _intern(self, pod: PodObject, facts: PodFacts, namespace: str) -> TaskClass:
        """The class with the content of a pod. The namespace is part of it only when terms or claims depend on it."""
        template = template_of(pod)
        affinity, spread, excess = limit_terms(template.affinity, template.spread, self._limits)
        template.affinity, template.spread = affinity, spread
        is_bound = bool(spread or template.volumes or template.claims) or (
            affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
        )
        namespace = namespace if is_bound else ""
        key = _encode((template, facts.class_annotations, facts.owner_kind, namespace, excess))
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = TaskClass(
                **{name: getattr(template, name) for name in _TEMPLATE_FIELDS},
                id=self._made,
                namespace=namespace,
                best_effort=not any(amount for name, amount in template.requests.items() if name != "pods"),
                annotations=facts.class_annotations,
                owner_kind=facts.owner_kind,
                alike=self._alike_number(template, facts, namespace, excess),
                term_excess=excess,
            )
            self._count(found)
            self._made += 1
            self.bytes += len(key)
            selectors = _namespace_selectors(affinity)
            if selectors:
                self._namespace_selectors[found] = selectors
        return found

    def _alike_number(self, template: PodTemplate, facts: PodFacts, namespace: str, excess: str) -> int:
        """See `TaskClass.alike`."""
        if not any(each.template for each in template.claims):
            return 0
        claims = tuple([each._replace(claim="") if each.template else each for each in template.claims])
        key = _encode(
            (dataclasses.replace(template, claims=claims), facts.class_annotations, facts.owner_kind, namespace, excess)
        )
        return self._alike.setdefault(key, self._made + 1)

    def placed(self, cls: TaskClass, notes: Mapping[str, str]) -> TaskClass:
        """The class of a pod that is placed with these device annotations; without any, that of a pending pod."""
        base = cls.unplaced or cls
        if not notes or not base.device_containers:
            return base
        amounts = tuple(sorted(self._accounting.placed_charge(base, notes).items()))
        if all(base.requests.get(name) == amount for name, amount in amounts):
            return base
        found = self._placed.get((base, amounts))
        if found is None:
            requests, limits = self._written.get(base, (base.requests, base.limits))
            found = dataclasses.replace(
                base, id=self._made, requests=requests, limits=limits, unplaced=base, placed=amounts
            )
            self._placed[base, amounts] = found
            self._made += 1
            self._count(found)
        return found

    def prune(self, used: set[TaskClass]) -> None:
        """Drop the classes without pods. O(classes)."""
        self._placed = {key: cls for key, cls in self._placed.items() if cls in used}
        used = used | {base for base, _ in self._placed}
        self._classes = {key: cls for key, cls in self._classes.items() if cls in used}
        self.bytes = self.bytes_in_use = sum(map(len, self._classes))
        self._namespace_selectors = {cls: found for cls, found in self._namespace_selectors.items() if cls in used}
        self._written = {cls: written for cls, written in self._written.items() if cls in used}
        self._unoffered &= used
        self.with_terms &= used
        self._by_spec.clear()
        self._alike.clear()
        self._last = None

    def new_names(self, names: Iterable[str]) -> set[str]:
        """The resources among `names` that have no column yet."""
        return {name for name in names if name not in self._offered}

    def unoffered_names(self) -> set[str]:
        """The requested resources without a column. O(classes with such requests)."""
        return {name for cls in self._unoffered for name in cls.unoffered}

    def requesting(self, names: set[str]) -> set[TaskClass]:
        """The classes that request resources without a column, some of `names`. O(classes with such requests)."""
        return {cls for cls in self._unoffered if not cls.unoffered.isdisjoint(names)}

    def offer(self, names: set[str], classes: Iterable[TaskClass] = ()) -> None:
        """Add columns of resources, and count the classes that `requesting` returned anew, without their tasks."""
        for name in sorted(names):
            self._columns.column(name)
        self._offered |= names
        for cls in classes:
            self._set_request(cls)

    def namespace_selectors(self) -> Iterator[LabelSelector]:
        """Every `namespaceSelector` in the pod (anti-)affinity terms of the classes."""
        return chain.from_iterable(self._namespace_selectors.values())

    def widen(self) -> None:
        """Pad every request vector to the present number of columns."""
        for cls in self:
            cls.set_request(self._columns.fit(cls.request))
            self._derive(cls)

    def account_devices(self, accounting: DeviceAccounting) -> None:
        """Count devices this way from now on; the caller subtracts every task before, and adds it again afterwards."""
        self._accounting = accounting
        for cls in self:
            written = self._written.pop(cls, None)
            if written is not None:
                cls.requests, cls.limits = written
            self._count(cls)

    def _count(self, cls: TaskClass) -> None:
        """Set the amounts of a class, as written or as the accounting has them."""
        if cls.affinity is not None or cls.spread:
            self.with_terms.add(cls)
        charge = dict(self._accounting.charge(cls)) if cls.device_containers else {}
        for name, amount in cls.placed:  # at least the request: annotations can be edited
            charge[name] = max(amount, charge.get(name, 0))
        if charge or not self._accounting.uncounted.isdisjoint(cls.requests):
            self._written[cls] = cls.requests, cls.limits
            uncounted = self._accounting.uncounted
            cls.requests = {name: amount for name, amount in cls.requests.items() if name not in uncounted} | charge
            cls.limits = {name: amount for name, amount in cls.limits.items() if name not in uncounted} | charge
        self._set_request(cls)

    def _set_request(self, cls: TaskClass) -> None:
        offered = {name: amount for name, amount in cls.requests.items() if name in self._offered}
        cls.unoffered = _NO_NAMES
        if len(offered) < len(cls.requests):
            cls.unoffered = frozenset(name for name, amount in cls.requests.items() if amount and name not in offered)
        if cls.unoffered:
            self._unoffered.add(cls)
        else:
            self._unoffered.discard(cls)
        cls.set_request(self._columns.vector(offered))
        self._derive(cls)

    def _derive(self, cls: TaskClass) -> None:
        """Set the vectors that follow from `request`."""
        cls.charge = np.append(cls.request, (cls.nonzero_cpu_milli, cls.nonzero_memory_bytes))
        excluded = [self._columns.column(name) for name in self._accounting.unfit if name in cls.requests]
        cls.fit_request = cls.request
        if excluded or cls.unoffered:
            cls.fit_request = cls.request.copy()
            cls.fit_request[excluded] = 0
            if not cls.unoffered <= self._accounting.unfit:
                cls.fit_request[PODS_COLUMN] = _NEVER_FREE


class _LabelSet(dict[str, str]):
    """Labels as a key of themselves: 10,000 different sets take 1.1 MiB less than with keys of their own."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override] # a shared set is never changed
        return hash(frozenset(self.items()))


class SharedLabels:
    """Equal label sets of pods as one object."""

    def __init__(self) -> None:
        self._sets: dict[_LabelSet, _LabelSet] = {}
        self._last: Mapping[str, str] = _NO_LABELS

    def share(self, labels: dict[str, str], tasks: Mapping[str, Task]) -> Mapping[str, str]:
        """The labels, or equal ones of an earlier pod; `tasks` are all that may refer to shared labels."""
        if not labels:
            return _NO_LABELS
        if labels == self._last:
            return self._last
        if len(labels) > _MOST_SHARED_LABELS:
            return labels
        if len(self._sets) > 2 * len(tasks) + _SPARE:
            shared = {task.labels for task in tasks.values() if isinstance(task.labels, _LabelSet)}
            self._sets = {labels: labels for labels in shared}
        found = _LabelSet(labels)
        self._last = found = self._sets.setdefault(found, found)
        return found


def _namespace_selectors(affinity: Affinity | None) -> tuple[LabelSelector, ...]:
    if affinity is None:
        return ()
    terms: list[PodAffinityTerm] = []
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if side is not None:
            terms += [*(side.required or ()), *(each.pod_affinity_term for each in side.preferred or ())]
    return tuple(term.namespace_selector for term in terms if term.namespace_selector is not None)


def _class_fields(pod: PodObject, facts: PodFacts, namespace: str) -> tuple[object, ...] | None:
    """The fields that determine the class of a pod; None when they depend on the pod's name."""
    spec = pod.spec
    if spec.volumes and any(volume.persistent_volume_claim or volume.ephemeral for volume in spec.volumes):
        return None  # claims may contain the pod's name
    if spec.resource_claims:
        return None
    return (
        spec.containers, spec.init_containers, spec.resources, spec.overhead, spec.node_selector, spec.affinity,
        spec.tolerations, spec.topology_spread_constraints, spec.host_network, spec.host_users,
        spec.priority_class_name, spec.preemption_policy, facts.class_annotations, facts.owner_kind, namespace,
        resizes(pod),
        inline_volumes(spec.volumes) if spec.volumes else (),
    )  # fmt: skip


def _encoded(fields: tuple[object, ...]) -> bytes | None:
    try:
        packed = _pack(fields)
    except OverflowError:  # an integer beyond 64 bits
        return None
    return packed if len(packed) <= _MOST_KEY_BYTES else hashlib.sha256(packed).digest()
