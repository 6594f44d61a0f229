"""References to NamespaceQueues, which are accepted and have no queue here."""

from __future__ import annotations

from capcard_sched.model.queue import NAMESPACE_QUEUES, QUEUE_FORM, names_namespace_queue
from capcard_sched.validation.checks import Finding


def check_namespace_queue(name: str, field: str) -> Finding:
    """The finding of a reference with a slash: a warning where it has the form of Volcano, else an error."""
    if names_namespace_queue(name):
        return Finding("warning", field, f"{NAMESPACE_QUEUES}: the job waits with QueueNotFound", "an existing queue")
    return Finding("error", field, f"{name} is no reference to a queue", QUEUE_FORM)
