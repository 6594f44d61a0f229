"""Admission of NamespaceQueues, and of the namespaces that a Queue allows (`allowedNamespaces`)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from capcard_sched.admission.review import DEFAULT_QUEUE, AdmissionResult
from capcard_sched.model.namespace_queues import (
    ALLOWED_FORM,
    EVERY_NAMESPACE,
    MOST_LEVELS,
    PARENT_FORM,
    ParentError,
    QueueForest,
    QueueNode,
    allowed_problem,
    allows,
    circle,
    parent_id,
    queue_node,
)
from capcard_sched.model.quoting import plural
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.inventory import as_map, namespace_of, object_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.admission.review import ClusterView
    from capcard_sched.validation.inventory import Json


def check_namespace_queue_object(obj: Json, old: Json | None, view: ClusterView) -> AdmissionResult:
    """What is wrong with a new or changed NamespaceQueue. Whether it may start pods is its condition Ready."""
    namespace, name = namespace_of(obj), object_name(obj)
    queue, reference = f"{namespace}/{name}", str(as_map(obj.get("spec")).get("parent") or "")
    if old is not None and str(as_map(old.get("spec")).get("parent") or "") == reference:
        return AdmissionResult(tuple(_check_sums(queue, obj, old, view)))
    try:
        parent = parent_id(reference, namespace)
    except ParentError as error:
        return AdmissionResult(
            (Finding("error", "spec.parent", str(error).removeprefix("spec.parent: "), PARENT_FORM),)
        )
    message = _held(queue, view) if old is not None else ""
    above, current = {queue: None}, parent
    while "/" in current and current not in above and len(above) <= MOST_LEVELS:
        above[current] = None
        found = view.namespace_queue(current)
        current = found.parent if found is not None else ""
    if current == queue:
        message = f"{queue} would be below itself: {circle([*above, queue])}"
    elif len(above) > MOST_LEVELS:
        message = f"{queue} would have {MOST_LEVELS} or more NamespaceQueues above it"
    if message:
        return AdmissionResult((Finding("error", "spec.parent", message, PARENT_FORM),))
    if "/" not in parent:
        others = [one for one in view.namespace_queues_below(parent) if one != queue]
        beside = [one for one in others if one.partition("/")[0] == namespace]
        if beside:
            message = f"NamespaceQueue {beside[0]} is below queue {parent}: a namespace has one subtree there"
            return AdmissionResult((Finding("error", "spec.parent", message, f"a parent at or below {beside[0]}"),))
    return AdmissionResult(tuple(_check_sums(queue, obj, None, view)))


def _check_sums(queue: str, obj: Json, old: Json | None, view: ClusterView) -> Iterator[Finding]:
    """Amounts above what the other queues below the parent leave, which stop pods of the own or another namespace.

    `old`: the former object below the same parent. Lower amounts are never held up.
    """
    node = queue_node(obj, is_local=True)
    before = QueueNode(node.parent) if old is None else queue_node(old, is_local=True)
    if not (_is_raised(before.guarantee, node.guarantee) or _is_raised(before.deserved, node.deserved)):
        return
    others = view.amounts_at(node.parent)
    if not others:
        return
    written = QueueForest(others).sums_below(node.parent)
    beside = {name: each for name, each in others.items() if name != queue}
    found = QueueForest({**beside, queue: node._replace(created=node.created or inf)}).sums_below(node.parent)
    own = queue.partition("/")[0]
    for namespace, text in found.items():
        if namespace == own or (namespace and namespace not in written):
            field = "spec.guarantee.resource" if text.startswith("guarantee") else "spec.deserved"
            yield Finding("error", field, text, "at most what the other queues below the parent leave")
            return


def _is_raised(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    return any(amount > before.get(name, 0) for name, amount in after.items())


def _held(queue: str, view: ClusterView) -> str:
    """Why a NamespaceQueue keeps its parent: the quotas above count the pods of its subtree."""
    found = view.namespace_queue(queue)
    pods = str(found.allocated.get("pods", 0)) if found is not None else "0"
    return "" if pods in ("", "0") else f"the queue has allocated pods: {pods}, which count for the queues above"


def check_namespace_queue_deletion(namespace: str, name: str, view: ClusterView) -> AdmissionResult:
    """Whether a NamespaceQueue may be deleted: it has no queues below it and no allocated pods."""
    queue = f"{namespace}/{name}"
    children, found = view.namespace_queues_below(queue), view.namespace_queue(queue)
    if children:
        message = f"NamespaceQueue {queue} has {plural(len(children), 'queue')} below it: {', '.join(children[:10])}"
        return AdmissionResult((Finding("error", "", message, "deleting these first"),))
    pods = str(found.allocated.get("pods", 0)) if found is not None else "0"
    if pods not in ("", "0"):
        message = f"NamespaceQueue {queue} has allocated pods: {pods}"
        return AdmissionResult((Finding("error", "", message, "a queue without allocated pods"),))
    return AdmissionResult()


def check_allowed(name: str, spec: Json, view: ClusterView) -> Iterator[Finding]:
    """What is wrong with `allowedNamespaces` of a Queue: its form, and namespaces in use that it lacks."""
    raw = spec.get("allowedNamespaces")
    allowed = [one for one in raw if isinstance(one, str)] if isinstance(raw, list) else []
    if raw is None and name == DEFAULT_QUEUE:
        allowed = [EVERY_NAMESPACE]
    problem = allowed_problem(allowed)
    if problem:
        yield Finding("error", "spec.allowedNamespaces", problem, ALLOWED_FORM)
        return
    for queue in view.namespace_queues_below(name):
        namespace = queue.partition("/")[0]
        if not allows(allowed, namespace):
            message = f"NamespaceQueue {queue} is below the queue, and namespace {namespace} is missing"
            yield Finding("error", "spec.allowedNamespaces", message, f"a list with {namespace}")
