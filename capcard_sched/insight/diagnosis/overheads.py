"""The part of a short resource that pods request for the overhead of their RuntimeClass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import spec
from capcard_sched.framework.explain.rejections import INSUFFICIENT
from capcard_sched.framework.explain.sentences import quantity
from capcard_sched.model.quantity import in_units
from capcard_sched.validation.inventory import as_map, base_amount_of

if TYPE_CHECKING:
    from capcard_sched.insight.sources.object_view import ObjectView
    from capcard_sched.model.diagnosis import JobDiagnosis
    from capcard_sched.model.job import Job


def overheads(objects: ObjectView, job: Job, found: JobDiagnosis) -> list[str]:
    """`Each pod requests 8 cpu, and the overhead of its RuntimeClass adds 0.5 cpu` of the resources that are short."""
    rows = [row for pods in found.pending for row in pods.nodes if row.decides and row.reason.startswith(INSUFFICIENT)]
    short = {row.reason.removeprefix(INSUFFICIENT): None for row in rows}
    refusals = [*found.refusals, *(pods.refusal for pods in found.pending if pods.refusal is not None)]
    short.update({check.resource: None for refusal in refusals for check in refusal.checks})
    waiting = {pods.names[0] for pods in found.pending} if short else set()
    facts: dict[str, None] = {}
    for task in job.tasks.values():
        pod = objects.get("Pod", task.namespace, task.name) if task.name in waiting else None
        added = as_map(spec(pod).get("overhead")) if pod is not None else {}
        for resource in short.keys() & added.keys():
            amount, requested = base_amount_of(resource, added[resource]), task.cls.requests.get(resource, 0)
            if amount:
                own = quantity(resource, in_units(resource, requested - amount))
                more = quantity(resource, in_units(resource, amount))
                facts[f"Each pod requests {own}, and the overhead of its RuntimeClass adds {more}"] = None
    return sorted(facts)
