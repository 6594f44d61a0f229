"""Turns the API client's callbacks into metrics and log lines."""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog

from capcard_sched.daemon.observability.logs import RepeatedErrors
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.model.report_once import ReportOnce

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.fence import Fence
    from capcard_sched.kube.informers import Informers
    from capcard_sched.model.intents import Bind, Evict

#: Watch event that needs attention to its log message.
_ERRORS: Final = {
    "missing": "resource not found (CRD missing?)",
    "forbidden": "list/watch forbidden",
    "refused": "list/watch failed, retrying",
    "undecodable": "object not decodable, skipped",
    "unexpected": "unexpected response to list/watch, retrying",
}
#: Watch events after which the watch works again.
_RECOVERED: Final = frozenset({"listed", "restarted"})
#: Names and figures in a message: failures that differ in them alone have one cause.
_DETAILS: Final = re.compile(r'"[^"]*"|\d+')


class LoggingObserver(Observer):
    """Updates metrics and logs."""

    def __init__(
        self,
        metrics: Observer,
        on_refused: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`metrics` receives every call, too; `on_refused` the server's message of each failed bind.

        `clock` in seconds, from any start.
        """
        self._metrics = metrics
        self._on_refused = on_refused
        #: Resource to the logged error of its watch: retries do not log it again.
        self._logged: ReportOnce[str, tuple[str, str]] = ReportOnce()
        #: Resource to the current error of its watch.
        self._errors: dict[str, str] = {}
        self._failed_writes = RepeatedErrors(clock)
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("capcard_sched.kube")

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._metrics.request(verb, resource, code, seconds)

    def watch_error(self, resource: str) -> str:
        """The current error of the watch of a kind, an event of `Observer.watch`; "" without one."""
        return self._errors.get(resource, "")

    def steps(self, informers: Informers, fence: Fence | None) -> dict[str, str]:
        """Steps before the lists are applied, in order: name to the reason why it is pending, "" when done."""
        found = {
            f"list/{resource}": (self.watch_error(resource) or "not listed yet") if pending else ""
            for resource, pending in informers.pending().items()
        }
        if fence is not None:
            found["fence-probed"] = "the probe of the fencing policy is in progress" if fence.probing else ""
        return found

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        self._metrics.watch(resource, event, detail)
        if event in _RECOVERED:
            self._errors.pop(resource, None)
        else:
            self._errors[resource] = event
        if event in _ERRORS:
            is_new = self._logged.update(resource, ((event, detail),))
            log = self._log.warning if is_new else self._log.debug
        elif event == "listed":
            self._logged.forget(resource)
            log = self._log.info
        else:
            log = self._log.debug
        log(_ERRORS.get(event, f"watch {event}"), resource=resource, event_type=event, detail=detail)

    def bound(self, bind: Bind, seconds: float) -> None:
        self._metrics.bound(bind, seconds)

    def bind_failed(self, bind: Bind, code: int, message: str) -> None:
        self._metrics.bind_failed(bind, code, message)
        self._on_refused(message)
        pod = f"{bind.namespace}/{bind.name}"
        self._log.warning("bind failed", pod=pod, node=bind.node, code=code, err=message)

    def evicted(self, evict: Evict) -> None:
        self._metrics.evicted(evict)
        self._log.info("evicted", pod=f"{evict.namespace}/{evict.name}", reason=evict.reason)

    def evict_failed(self, evict: Evict, code: int, message: str) -> None:
        self._metrics.evict_failed(evict, code, message)
        pod = f"{evict.namespace}/{evict.name}"
        self._log.warning("eviction failed", pod=pod, reason=evict.reason, code=code, err=message)

    def written(self, kind: str, seconds: float) -> None:
        self._metrics.written(kind, seconds)

    def write_failed(self, kind: str, code: int, message: str) -> None:
        # Failures of one kind and cause get a line a minute.
        self._metrics.write_failed(kind, code, message)
        if code == HTTPStatus.NOT_FOUND and message.endswith(" not found"):
            self._log.debug(f"{kind} already deleted", err=message)
            return
        repeated = self._failed_writes.count((kind, code, _DETAILS.sub("", message)))
        log = self._log.debug if repeated is None else self._log.warning
        log("write failed", kind=kind, code=code, err=message, **({"repeated": repeated} if repeated else {}))

    def claim_written(self, step: str, code: int) -> None:
        self._metrics.claim_written(step, code)

    def devices_prepared(self, result: str, seconds: float) -> None:
        self._metrics.devices_prepared(result, seconds)

    def dropped(self, kind: str, count: int) -> None:
        self._metrics.dropped(kind, count)
        self._log.warning("dropped writes", kind=kind, count=count)
