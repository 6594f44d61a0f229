"""Access to the pages: the namespaces whose jobs a viewer sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Collection

#: The name of the user of a request, whose streams and views are limited.
VIEWER: Final = web.RequestKey("viewer", str)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class DeniedError(Exception):
    """A request without access. `status` is 401 without a valid token, else 403."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def is_visible_queue(queue: str, namespaces: Collection[str] | None) -> bool:
    """Whether a viewer of namespaces may see a queue: Queues are visible to all, a NamespaceQueue as its pods."""
    namespace, slash, _ = queue.partition("/")
    return namespaces is None or not slash or namespace in namespaces


class Access(Protocol):
    """A rule of access."""

    async def namespaces(self, request: web.Request) -> frozenset[str] | None:
        """The namespaces whose jobs the viewer may see; None for all. Raises DeniedError.

        A rule that knows users sets `request[VIEWER]`.
        """


class LocalAccess:
    """Shows everything to every program of this machine.

    Requests for another host name are refused: a foreign site whose name resolves to this address reads nothing.
    """

    def __init__(self, hosts: Collection[str] | None = ()) -> None:
        """`hosts`: further names of this server, without ports; None: every name."""
        self._hosts = None if hosts is None else _LOOPBACK.union(hosts)

    async def namespaces(self, request: web.Request) -> frozenset[str] | None:
        """All namespaces. Raises DeniedError for another host name."""
        if self._hosts is None:
            return None
        host = request.host
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        if name not in self._hosts:
            raise DeniedError(403, f"host {host!r}: expected one of {', '.join(sorted(self._hosts))}")
        return None
