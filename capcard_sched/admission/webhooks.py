"""The table of webhooks: path, kinds and the rule that each of them applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.admission.jobs import check_job_update, check_new_job, default_job
from capcard_sched.admission.namespace_queues import check_namespace_queue_deletion, check_namespace_queue_object
from capcard_sched.admission.pods import (
    check_new_pod,
    check_new_pod_group,
    check_pod_group_update,
    check_workload,
    default_pod,
    default_pod_group,
)
from capcard_sched.admission.queues import (
    DEFAULT_RULES,
    QueueRules,
    check_queue_deletion,
    check_queue_object,
    default_queue,
)
from capcard_sched.admission.review import AdmissionResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.admission.pods import AdmissionConfig
    from capcard_sched.admission.review import AdmissionRequest, ClusterView


class WebhookContext(NamedTuple):
    """Everything a rule reads besides the request."""

    view: ClusterView
    config: AdmissionConfig
    #: Schedulers whose pods the checks are for; the first is the default of vcjobs.
    scheduler_names: tuple[str, ...]
    queue_rules: QueueRules = DEFAULT_RULES
    #: Pods of these schedulers with the annotation of the queue allocation gate get the gate.
    adds_queue_gate: bool = False


class Webhook(NamedTuple):
    """One path of the server."""

    path: str
    rule: Callable[[AdmissionRequest, WebhookContext], AdmissionResult]
    #: Objects are admitted while the server is down (failurePolicy Ignore), and so when it is overloaded.
    is_advisory: bool = False


_ALLOW: Final = AdmissionResult()


def decide(hook: Webhook, request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    return hook.rule(request, context)


def _mutate_job(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    return default_job(request.subject, context.scheduler_names[0]) if request.operation == "CREATE" else _ALLOW


def _validate_job(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    if request.operation == "CREATE":
        return check_new_job(request.subject, context.view)
    if request.operation == "UPDATE":
        old = request.old_object or {}
        return check_job_update(request.subject, old, context.view, context.scheduler_names[0])
    return _ALLOW


def _mutate_queue(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    del context
    return default_queue(request.subject) if request.operation == "CREATE" else _ALLOW


def _validate_queue(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    if request.operation == "DELETE":
        return check_queue_deletion(request.name, context.view, context.queue_rules)
    old = request.old_object if request.operation == "UPDATE" else None
    if old is not None and (request.subject.get("metadata") or {}).get("deletionTimestamp"):
        return _ALLOW
    return check_queue_object(request.subject, old, context.view, context.queue_rules)


def _validate_namespace_queue(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    if request.operation == "DELETE":
        return check_namespace_queue_deletion(request.namespace, request.name, context.view)
    old = request.old_object if request.operation == "UPDATE" else None
    return check_namespace_queue_object(request.subject, old, context.view)


def _mutate_pod_group(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    if request.operation != "CREATE":
        return _ALLOW
    return default_pod_group(request.subject, request.namespace, context.view)


def _validate_pod_group(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    if request.operation == "CREATE":
        return check_new_pod_group(request.subject, context.view)
    if request.operation == "UPDATE":
        return check_pod_group_update(request.subject, request.old_object or {})
    return _ALLOW


def _mutate_pod(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    if request.operation != "CREATE":
        return _ALLOW
    gated = context.scheduler_names if context.adds_queue_gate else ()
    return default_pod(request.subject, request.namespace, context.config.resource_groups, gated)


def _validate_pod(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    scheduler = (request.subject.get("spec") or {}).get("schedulerName")
    if request.operation != "CREATE" or scheduler not in context.scheduler_names:
        return _ALLOW
    return check_new_pod(request.subject, context.view)


def _validate_workload(request: AdmissionRequest, context: WebhookContext) -> AdmissionResult:
    return check_workload(request.subject, context.view) if request.operation != "DELETE" else _ALLOW


WEBHOOKS: Final = {
    hook.path: hook
    for hook in (
        Webhook("/jobs/mutate", _mutate_job),
        Webhook("/jobs/validate", _validate_job),
        Webhook("/queues/mutate", _mutate_queue),
        Webhook("/queues/validate", _validate_queue),
        Webhook("/namespacequeues/validate", _validate_namespace_queue),
        Webhook("/podgroups/mutate", _mutate_pod_group),
        Webhook("/podgroups/validate", _validate_pod_group),
        Webhook("/pods/mutate", _mutate_pod, is_advisory=True),
        Webhook("/pods/validate", _validate_pod, is_advisory=True),
        Webhook("/workloads/validate", _validate_workload, is_advisory=True),
    )
}
