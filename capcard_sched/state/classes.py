"""Equivalence classes: pods of one template share one TaskClass (architecture D4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model.task import TaskClass

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from capcard_sched.model.pods import PodTemplate
    from capcard_sched.model.resources import ResourceColumns

_encode = msgspec.json.Encoder(order="deterministic").encode


class ClassTable:
    """Interns task classes by content. Classes live as long as the state: templates are few."""

    def __init__(self, columns: ResourceColumns) -> None:
        self._columns = columns
        self._classes: dict[Hashable, TaskClass] = {}

    def __len__(self) -> int:
        return len(self._classes)

    def intern(
        self, template: PodTemplate, annotations: Mapping[str, str], owner_kind: str, namespace: str
    ) -> TaskClass:
        """The class of a template. `namespace` counts only when affinity or spread makes it matter."""
        affinity = template.affinity
        bound = bool(template.spread) or (
            affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
        )
        namespace = namespace if bound else ""
        key = (
            tuple(template.requests.items()),
            tuple(template.limits.items()),
            template.nonzero_cpu_milli,
            template.nonzero_memory_bytes,
            tuple(sorted(template.node_selector.items())),
            _encode(affinity) if affinity is not None else None,
            template.tolerations,
            _encode(template.spread) if template.spread else None,
            template.host_ports,
            template.images,
            template.volumes,
            tuple(sorted(annotations.items())),
            owner_kind,
            template.priority_class_name,
            template.preemption_policy,
            namespace,
        )
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = TaskClass(
                id=len(self._classes),
                namespace=namespace,
                requests=dict(template.requests),
                request=self._columns.vector(template.requests),
                limits=dict(template.limits),
                nonzero_cpu_milli=template.nonzero_cpu_milli,
                nonzero_memory_bytes=template.nonzero_memory_bytes,
                best_effort=not any(amount for name, amount in template.requests.items() if name != "pods"),
                node_selector=dict(template.node_selector),
                affinity=affinity,
                tolerations=template.tolerations,
                spread=template.spread,
                host_ports=template.host_ports,
                images=template.images,
                volumes=template.volumes,
                annotations=dict(annotations),
                owner_kind=owner_kind,
                priority_class_name=template.priority_class_name,
                preemption_policy=template.preemption_policy,
            )
        return found

    def widen(self) -> None:
        """Pad every request vector to the present width."""
        for cls in self._classes.values():
            cls.request = self._columns.fit(cls.request)
