"""Dumps the state to a file (`--cache-dump-dir`) on SIGUSR1, and compares it with the API server on SIGUSR2.

The dump is the document of the state (`state/document.py`) with the cards of queues and nodes, without empty fields and
without texts of tenants: of annotations and labels it has only those of cards; of containers neither environment nor
arguments. Beside it is a saved state (`saved_state.py`) with the objects of the API server, for `-f` of the commands.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from capcard_sched.daemon.diagnosis import cache_comparer
from capcard_sched.daemon.diagnosis.recording import conf_document
from capcard_sched.daemon.diagnosis.saved_state import SavedSettings, document_text, manifests_of
from capcard_sched.daemon.observability.metric_samples import sample_core
from capcard_sched.framework.explain.limits import card_figures
from capcard_sched.framework.toolkit.device_cards import DeviceStateCounts
from capcard_sched.kube.client import RequestError
from capcard_sched.kube.informers import list_all
from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.usage import PERIOD
from capcard_sched.state.document import TENANT_TEXTS, Row, by_object, to_document

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from capcard_sched.daemon.observability.observer import LoggingObserver
    from capcard_sched.daemon.scheduler_thread import SchedulerThread
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.kinds import WatchedKind

_UNITS: Final = {
    "cpu": "thousandths of a core",
    "memory": "bytes, as ephemeral-storage and huge pages",
    "pods": "pods",
    "other resources": "thousandths of a unit: one device is 1000",
    "cards": "cards",
    "ResourceQuota": "bytes for resources in bytes, else thousandths",
    "NodeUsage": f"percent, averages over {PERIOD}",
}
#: Names of the files: the document of the state, and the objects of the API server.
STATE, OBJECTS = "snapshot", "objects"


def snapshot(core: CoreSnapshot, now: float) -> bytes:
    """The state as JSON text. For the scheduler thread, between two steps; `now` in Unix seconds.

    Changes nothing. Card figures of a failing plugin are replaced by its error.
    """
    state = core.state
    document = to_document(state)
    sample = sample_core(core, DeviceStateCounts())
    for name, cards in card_figures(one for _, samples in sample.plugins for one in samples).items():
        if name in document["Queue"]:
            document["Queue"][name]["cards"] = cards
    for name, row in document["Node"].items():
        node = state.nodes.by_name[name]
        row["cards"] = {card: amount / CARD for card, (amount, _) in state.cards_of(node).items()}
    for pod in document["Pod"].values():
        pod["card"] = pod["annotations"].get(CARD_NAME, "") or pod["annotations"].get(CARD_NAME_ALIAS, "")
    for name, usage in document["NodeUsage"].items():
        usage["fresh"] = state.usage[name].is_fresh(now)
    document["Cluster"][""]["ignored_edits"] = by_object(state.ignored_edits.details)
    content: Row = {
        "time": format_timestamp(now),
        "units": _UNITS,
        "schedulerNames": sorted(state.scheduler_names),
        "defaultQueue": state.default_queue,
        "waitsForPodGroups": state.waits_for_groups,
        "terms": state.terms,
        "schedulerConf": {
            "hash": core.conf.hash,
            "actions": core.conf.actions,
            "tiers": [[option.name for option in tier] for tier in core.conf.tiers],
        },
        **{kind: {name: _printed(row) for name, row in rows.items()} for kind, rows in document.items()},
    }
    if sample.failed:
        content["failures"] = [f"plugin {plugin}, metrics: {error}" for plugin, error in sample.failed]
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def _printed(row: Row) -> Row:
    return {
        field: value
        for field, value in row.items()
        if field not in TENANT_TEXTS and (value or isinstance(value, bool | int))
    }


def settings_of(core: CoreSnapshot, now: float) -> SavedSettings:
    """The settings of the objects beside a dump. For the scheduler thread; `now` in Unix seconds."""
    names, conf = tuple(sorted(core.state.scheduler_names)), msgspec.json.encode(conf_document(core.conf))
    return SavedSettings(format_timestamp(now), names, core.state.default_queue, conf.decode())


def write_snapshot(folder: Path, content: bytes, now: float, kind: str = STATE) -> Path:
    """Write `<kind>-<unix seconds>.json` atomically, readable by the owner only. Raises OSError."""
    target = folder / f"{kind}-{int(now)}.json"
    part = folder / f".{target.name}.{os.getpid()}"
    # O_EXCL and O_NOFOLLOW: the folder is often world-writable.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return target


#: Seconds: between the two comparisons; updates that the watch delivers meanwhile are no differences.
_COMPARE_SECONDS: Final = 2.0
#: Differences: maximum logged.
_MOST_DIFFERENCES: Final = 100


class CacheDebugger:
    """Inspects the core's state between two steps."""

    def __init__(
        self,
        thread: SchedulerThread,
        client: Client,
        kinds: Sequence[WatchedKind[Any]],
        observer: LoggingObserver,
        folder: Path,
    ) -> None:
        """`folder`: of dumps."""
        self._thread = thread
        self._client = client
        self._kinds = kinds
        self._observer = observer
        self._folder = folder
        #: Dumps of one second have the same file names.
        self._dumping = asyncio.Lock()
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

    async def dump(self) -> None:
        """Write the state to a file, and the objects of the API server, as a saved state, to another."""
        async with self._dumping:
            await self._dump(time.time())

    async def _dump(self, now: float) -> None:
        content = await self._thread.query(lambda core: snapshot(core.snapshot(), now))
        settings = await self._thread.query(lambda core: settings_of(core.snapshot(), now))
        await self._write("dump written", STATE, content, now)
        try:
            deltas = await list_all(self._client, self._kinds, self._observer)
        except RequestError as error:
            self._log.error("failed to list the objects of the dump", err=str(error))
            return
        objects = await asyncio.to_thread(lambda: document_text(settings, manifests_of(deltas)))
        await self._write("objects of the dump written", OBJECTS, objects, now)

    async def _write(self, message: str, kind: str, content: bytes, now: float) -> None:
        try:
            path = await asyncio.to_thread(write_snapshot, self._folder, content, now, kind)
        except OSError as error:
            self._log.error("failed to write dump", folder=str(self._folder), err=str(error))
        else:
            self._log.info(message, file=str(path), bytes=len(content))

    async def compare(self) -> None:
        """Log differences from the API server that two comparisons find."""
        try:
            found = await self._differences()
            if found:
                await asyncio.sleep(_COMPARE_SECONDS)
                found = cache_comparer.lasting(found, await self._differences())
        except RequestError as error:
            self._log.error("failed to compare the cache", err=str(error))
            return
        for difference in found[:_MOST_DIFFERENCES]:
            self._log.warning("cache differs", difference=difference.render())
        self._log.info("cache compared with the API server", differences=len(found))

    async def _differences(self) -> list[cache_comparer.CacheDifference]:
        deltas = await list_all(self._client, self._kinds, self._observer)
        state = await self._thread.query(lambda core: core.snapshot().state)
        fresh = await asyncio.to_thread(cache_comparer.rebuild, state, deltas)  # reads only settings of `state`
        return await self._thread.query(lambda core: cache_comparer.differences(core.snapshot().state, fresh))
