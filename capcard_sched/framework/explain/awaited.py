"""What a job waits for on a cluster whose nodes an autoscaler adds: quota, or nodes of a number and shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain import sentences
from capcard_sched.framework.explain.never import AWAITS_NODES
from capcard_sched.framework.explain.sentences import quantity
from capcard_sched.model.quantity import in_units
from capcard_sched.model.quoting import plural
from capcard_sched.model.reasons import POD_QUOTA_PENDING
from capcard_sched.model.resources import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.explain.job_facts import JobFacts
    from capcard_sched.framework.explain.limit_causes import StageResult
    from capcard_sched.model.diagnosis import CardCapacity
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.model.task_class import TaskClass

#: Stages of jobs that wait for quota or nodes.
_STAGES: Final = frozenset({"NoNodeFits", "GangWaiting", "ClusterFull", "OverQuota", "NotAdmitted"})


def with_awaited(data: JobFacts, found: StageResult) -> StageResult:
    """The stage with `Waits for quota` or `Waits for nodes: 2 more nodes with 8 NVIDIA-H200` before its cause."""
    refusals = [*data.refusals, *filter(None, map(data.refusal_of, data.pending))]
    if found.stage in _STAGES and any(_is_quota(data, refusal) for refusal in refusals):
        return found._replace(summary=f"Waits for quota: {sentences.lower(found.summary)}")
    missing = ", ".join(filter(None, (_missing(data, cls) for cls in data.cards_by_class)))
    if found.stage in _STAGES and missing:
        facts = [sentences.capital(found.summary), *found.facts]
        return found._replace(summary=f"{AWAITS_NODES}: {missing}", facts=facts)
    return found


def _is_quota(data: JobFacts, refusal: Refusal) -> bool:
    """Whether a quota refused; not a limit that follows from the size of the cluster."""
    if refusal.pending_reason is not POD_QUOTA_PENDING:
        return False
    names = [each.resource for each in (refusal.figures, *refusal.alternatives) if each is not None]
    queues = {refusal.queue, *(row.queue for row in data.limits)}
    stated = [name for name in names if any(name in data.capabilities.get(queue, {}) for queue in queues)]
    return not names or bool(stated) or any(name not in (CPU, MEMORY) for name in names)


def _missing(data: JobFacts, cls: TaskClass) -> str:
    """`2 more nodes with 8 NVIDIA-H200` for the pods of a template without a node; "" for none."""
    pods = sum(task.cls is cls for task in data.waiting)
    on_nodes = sum(task.cls is cls and task.node is not None for task in data.tasks)
    lacking = min(pods, data.needed_of(cls) - on_nodes) - data.fitting_of(cls)
    if lacking <= 0 or (data.node_groups and data.group_of(cls) is None):
        return ""
    name, per_pod, size = _shape(data, cls, data.capacity_of(cls))
    nodes = -(-lacking // max(1, int(size // per_pod))) if per_pod else lacking
    return f"{plural(nodes, 'more node')} with {quantity(name, size)}" if name else plural(nodes, "more node")


def _shape(data: JobFacts, cls: TaskClass, rows: Sequence[CardCapacity]) -> tuple[str, float, float]:
    """The card or resource that is short, its amount per pod, and that of a node: of the largest one that exists."""
    cards, group = data.cards_by_class[cls], data.group_of(cls)
    for card, (offered, resource) in () if group is None else group.cards.items():
        if card in cards.names and (requested := cls.requests.get(resource, 0)):
            return card, in_units(resource, requested), in_units(resource, offered)
    of_cards = [row for row in rows if row.card in cards.alternatives]
    if of_cards:
        row = max(of_cards, key=lambda row: row.largest_node)
        return "|".join(cards.alternatives), row.per_pod, max(row.largest_node, row.per_pod)
    devices = [name for name in cls.requests if name not in (CPU, MEMORY, PODS)]
    if cards.names and len(devices) == 1:
        amount = in_units(devices[0], cls.requests[devices[0]])
        return "|".join(cards.names), amount, amount
    if rows:
        row = min(rows, key=lambda row: row.fits_now)
        return row.card, row.per_pod, max(row.largest_node, row.per_pod)
    amount = in_units(CPU, cls.requests.get(CPU, 0))
    return (CPU, amount, amount) if amount else ("", 0.0, 0.0)
