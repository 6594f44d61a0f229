"""What the backend tells of itself, passed on: figures to the metrics, what people should know to the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.daemon.observability.metrics import Metrics
    from capcard_sched.model.intents import Bind, Evict

#: Happenings of a watch that need somebody's attention; the others are part of a normal day.
_TROUBLE: Final = frozenset({"missing", "forbidden", "refused", "undecodable", "unexpected"})
#: Those after which it goes well again.
_WELL: Final = frozenset({"listed", "restarted"})


class LoggingObserver:
    """A `kube.instrumentation.Observer` that counts and logs."""

    def __init__(self, metrics: Metrics, on_refused: Callable[[str], None]) -> None:
        """`on_refused` hears the server's message on every refused binding."""
        self._metrics = metrics
        self._on_refused = on_refused
        #: Resource to the trouble of its watch that was told last: it is tried again and again.
        self._told: dict[str, tuple[str, str]] = {}
        #: Resource to what went wrong with its watch last, until it goes well again.
        self._troubles: dict[str, str] = {}
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("capcard_sched.kube")

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One request ended."""
        self._metrics.request(verb, resource, code, seconds)

    def trouble(self, resource: str) -> str:
        """What went wrong last with the watch of a kind, as `Observer.watch` calls it; "" while it goes well."""
        return self._troubles.get(resource, "")

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        """Something happened to the watch of a kind."""
        self._metrics.watch(resource, event, detail)
        if event in _WELL:
            self._troubles.pop(resource, None)
        else:
            self._troubles[resource] = event
        if event in _TROUBLE:
            news = self._told.get(resource) != (event, detail)
            self._told[resource] = (event, detail)
            tell = self._log.warning if news else self._log.debug
        elif event == "listed":
            self._told.pop(resource, None)
            tell = self._log.info
        else:
            tell = self._log.debug
        tell("watch", resource=resource, event_type=event, detail=detail)

    def bound(self, bind: Bind, seconds: float) -> None:
        """A pod is bound."""
        self._metrics.bound(bind, seconds)

    def bind_failed(self, bind: Bind, code: int, message: str) -> None:
        """The API server refused a binding."""
        self._metrics.bind_failed(bind, code, message)
        self._on_refused(message)
        pod = f"{bind.namespace}/{bind.name}"
        self._log.warning("binding refused", pod=pod, node=bind.node, code=code, why=message)

    def evicted(self, evict: Evict) -> None:
        """A pod was evicted."""
        self._metrics.evicted(evict)
        self._log.info("evicted", pod=f"{evict.namespace}/{evict.name}", reason=evict.reason)

    def evict_failed(self, evict: Evict, code: int, message: str) -> None:
        """The API server refused an eviction."""
        self._metrics.evict_failed(evict, code, message)
        pod = f"{evict.namespace}/{evict.name}"
        self._log.warning("eviction refused", pod=pod, reason=evict.reason, code=code, why=message)

    def written(self, kind: str, seconds: float) -> None:
        """Something else was written."""
        self._metrics.written(kind, seconds)

    def write_failed(self, kind: str, code: int, message: str) -> None:
        """The API server refused something else."""
        self._metrics.write_failed(kind, code, message)
        self._log.warning("write refused", kind=kind, code=code, why=message)

    def dropped(self, kind: str, count: int) -> None:
        """So many writes were given up unsent."""
        self._metrics.dropped(kind, count)
        self._log.warning("writes given up", kind=kind, count=count)
