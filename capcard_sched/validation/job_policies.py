"""Rules of the lifecycle policies of jobs and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.validation.checks import Finding
from capcard_sched.validation.names import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.inventory import Json

#: Actions that policies may name.
ACTIONS: Final = (
    *("AbortJob", "RestartJob", "RestartTask", "RestartPartition", "RestartPod"),
    *("TerminateJob", "CompleteJob", "ResumeJob"),
)
EVENTS: Final = ("*", "PodPending", "PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown", "JobUpdated")


def check_policies(policies: Any, field: str) -> Iterator[Finding]:
    """The findings of `policies` of a job or task."""
    events: set[str] = set()
    codes: set[int] = set()
    entries = [entry for entry in policies if isinstance(entry, dict)] if isinstance(policies, list) else []
    for index, policy in enumerate(entries):
        place = f"{field}[{index}]"
        named = [event for event in (policy.get("event"), *(policy.get("events") or ())) if event]
        code = policy.get("exitCode")
        if named and code is not None:
            yield Finding("error", place, "must not specify event and exitCode simultaneously", "event or exitCode")
        elif not named and code is None:
            yield Finding("error", place, "either event and exitCode should be specified", "event, events or exitCode")
        for event in dict.fromkeys(named):
            if event not in EVENTS:
                yield Finding("error", f"{place}.event", f"invalid policy event {shown(event)}", ", ".join(EVENTS))
            elif event in events:
                message = f"duplicate event {event}  across different policy"
                yield Finding("error", f"{place}.event", message, "each event in one policy")
            events.add(event)
        if code == 0:
            yield Finding("error", f"{place}.exitCode", "0 is not a valid error code", "a number other than 0")
        elif code in codes:
            message = f"duplicate exitCode {code}"
            yield Finding("error", f"{place}.exitCode", message, "each exit code in one policy")
        if isinstance(code, int):
            codes.add(code)
        if policy.get("action") not in ACTIONS:
            message = f"invalid policy action {shown(policy.get('action'))}"
            yield Finding("error", f"{place}.action", message, ", ".join(ACTIONS))
    if "*" in events and len(events) > 1:
        yield Finding("error", field, "if there's * here, no other policy should be here", "only the event *")


def answers_eviction(owner: Json) -> bool:
    """Whether a policy of a job or task is for the event."""
    policies = owner.get("policies")
    entries = [entry for entry in policies if isinstance(entry, dict)] if isinstance(policies, list) else []
    return any(name in ("PodEvicted", "*") for entry in entries for name in (entry.get("event"), *_events(entry)))


def _events(policy: Json) -> list[Any]:
    events = policy.get("events")
    return events if isinstance(events, list) else []
