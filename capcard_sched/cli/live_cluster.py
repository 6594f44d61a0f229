"""Reads every object of a live cluster that the scheduler reads, and the installed scheduler-conf."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from capcard_sched.cli.simulate import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

#: Gets the text of the installed scheduler-conf, in a thread of its own while the API server makes the first lists;
#: its result takes in the objects, page by page.
Receiver: TypeAlias = "Callable[[str | None], Callable[[Sequence[Delta]], None]]"

_CONF_KEY: Final = "scheduler.yaml"
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
#: Watch event of an optional kind to the text of its note.
_UNREAD: Final = {"missing": "not served by the API server", "forbidden": "access denied"}


class LiveCluster(NamedTuple):
    """What one read of a live cluster found."""

    connection: Connection
    #: Text of the installed scheduler-conf; None when it is missing, not readable, or replaced by a flag.
    conf: str | None
    #: Every object that the scheduler watches, and Jobs when they are asked for.
    deltas: list[Delta]
    #: Required resources that are not readable.
    unreadable: tuple[str, ...]
    #: The kinds that are readable.
    kinds: tuple[WatchedKind[Any], ...]


def read_cluster(
    kubeconfig: Path | None,
    context: str,
    installed_conf: str,
    namespace: str = "",
    *,
    jobs: bool = False,
    receiver: Receiver | None = None,
) -> LiveCluster:
    """Read a cluster. Raises BadInputError, and what `receiver` raises.

    `installed_conf`: the ConfigMap, `namespace/name`; "" for none. `namespace`: the one to read where the objects of
    all namespaces are not readable; "" for that of the kubeconfig's context. `jobs`: read the Jobs, too.
    """
    import asyncio

    import uvloop

    from capcard_sched.insight.live_objects import MissingKindError
    from capcard_sched.kube.client import ApiError, Unreachable
    from capcard_sched.kube.connection import ConnectionConfigError, load_connection

    try:
        connection = load_connection(kubeconfig, None, context or None)
    except ConnectionConfigError as error:
        text = str(error)
        if kubeconfig is None:
            text = f"{text.rstrip('.')}; or pass manifests with -f"
        raise BadInputError(text) from None
    found: list[LiveCluster] = []  # not the result of the task: asyncio formats results as text

    async def read() -> None:
        own = namespace or connection.namespace or "default"
        found.append(await _read(connection, installed_conf, own, jobs=jobs, receiver=receiver))

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # decrypts a list in three quarters the time
            runner.run(read())
    except (ApiError, MissingKindError, Unreachable) as error:
        raise BadInputError(f"{connection.server}: {error}") from None
    return found[0]


async def _read(
    connection: Connection, installed_conf: str, namespace: str, *, jobs: bool, receiver: Receiver | None
) -> LiveCluster:
    """Read the installed scheduler-conf and every object the daemon watches."""
    import asyncio

    from capcard_sched.insight.live_objects import JOBS, list_readable
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.instrumentation import Observer

    unread: dict[str, list[str]] = {}
    conf: str | None = None

    class Notes(Observer):
        """Collects missing and forbidden kinds; prints undecodable objects."""

        def watch(self, resource: str, event: str, detail: str = "") -> None:
            if event == "undecodable":
                print(f"warning: {detail}; skipped", file=sys.stderr)
            elif event in _UNREAD:
                unread.setdefault(event, []).append(resource)

    async with Client(connection) as client:

        async def begin() -> Callable[[Sequence[Delta]], None] | None:
            nonlocal conf
            conf = await _installed_conf(client, installed_conf) if installed_conf else None
            return None if receiver is None else await asyncio.to_thread(receiver, conf)

        found = await list_readable(client, namespace, Notes(), [JOBS] if jobs else (), begin)
    for event, resources in unread.items():
        print(f"note: {_UNREAD[event]}, assumed empty: {', '.join(resources)}", file=sys.stderr)
    if found.unreadable:
        consequence = "; no quota and no node is shown" if {"nodes", "queues"} <= set(found.unreadable) else ""
        print(f"note: access denied: {', '.join(found.unreadable)}{consequence}", file=sys.stderr)
    return LiveCluster(connection, conf, found.deltas, found.unreadable, found.kinds)


async def _installed_conf(client: Client, name: str) -> str | None:
    from capcard_sched.kube.client import ApiError
    from capcard_sched.kube.paths import object_path

    class ConfigMap(msgspec.Struct):
        data: dict[str, str] = {}

    namespace, _, plain = name.partition("/")
    if not namespace or not plain:
        raise BadInputError(f"--installed-conf: {name!r}: expected NAMESPACE/NAME")
    try:
        body = await client.request("GET", object_path("ConfigMap", namespace, plain))
    except ApiError as error:
        if error.status not in {_NOT_FOUND, _FORBIDDEN}:
            raise
        reason = "not found" if error.status == _NOT_FOUND else "access denied"
        print(f"note: ConfigMap {name}: {reason}; using the built-in scheduler-conf", file=sys.stderr)
        return None
    conf = msgspec.json.decode(body, type=ConfigMap).data.get(_CONF_KEY)
    if conf is None:
        print(f"note: ConfigMap {name} has no key {_CONF_KEY}; using the built-in scheduler-conf", file=sys.stderr)
    return conf
