"""Steps of a replica before it can schedule, for /readyz."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.daemon.observability.observer import LoggingObserver
    from capcard_sched.kube.fence import Fence
    from capcard_sched.kube.informers import Informers


def steps(informers: Informers, observer: LoggingObserver, fence: Fence | None) -> dict[str, str]:
    """Steps before the lists are applied, in order: name to the reason why it is pending, "" when done."""
    found = {
        f"list/{resource}": (observer.watch_error(resource) or "not listed yet") if pending else ""
        for resource, pending in informers.pending().items()
    }
    if fence is not None:
        found["fence-probed"] = "the probe of the fencing policy is in progress" if fence.probing else ""
    return found
