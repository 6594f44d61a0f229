"""What a replica does before it can schedule, step by step: for /readyz."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.daemon.observer import LoggingObserver
    from capcard_sched.kube.fence import Fence
    from capcard_sched.kube.informers import Informers


def steps(feed: Informers, telling: LoggingObserver, fence: Fence | None) -> dict[str, str]:
    """What comes before the lists are applied, in order: name to why it is not done, "" when it is."""
    found = {
        f"list/{resource}": (telling.trouble(resource) or "not listed yet") if pending else ""
        for resource, pending in feed.pending().items()
    }
    if fence is not None:
        found["fence-probed"] = "the API server is being asked whether the fence acts" if fence.probing else ""
    return found
