"""Dumps the scheduler's state to a file (`--cache-dump-dir`).

The dump is the document of the state (`state/document.py`) with the cards of queues and nodes, without empty fields and
without texts of tenants: of annotations and labels it has only those of cards; of containers neither environment nor
arguments. Beside it is a saved state (`saved_state.py`) with the objects of the API server, for `-f` of the commands.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.daemon.diagnosis.recording import conf_document
from capcard_sched.daemon.diagnosis.saved_state import SavedSettings
from capcard_sched.daemon.observability.metric_samples import CoreSample, sample_core
from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS
from capcard_sched.model.cards import CARD, discover_cards
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.usage import PERIOD
from capcard_sched.state.document import TENANT_TEXTS, Row, by_object, to_document

if TYPE_CHECKING:
    from pathlib import Path

    from capcard_sched.framework.core import CoreSnapshot

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
#: Prefix of the quota plugin's metrics per queue and card.
_CARD_FIGURES: Final = "queue_card_"


def snapshot(core: CoreSnapshot, now: float) -> bytes:
    """The state as JSON text. For the scheduler thread, between two steps; `now` in Unix seconds.

    Changes nothing. Card figures of a failing plugin are replaced by its error.
    """
    state = core.state
    document = to_document(state)
    sample = sample_core(core)
    for name, cards in _card_figures(sample).items():
        if name in document["Queue"]:
            document["Queue"][name]["cards"] = cards
    for name, row in document["Node"].items():
        node = state.nodes.by_name[name]
        row["cards"] = {
            card: amount / CARD for card, (amount, _) in discover_cards(node.labels, node.allocatable).cards.items()
        }
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


def settings(core: CoreSnapshot, now: float) -> SavedSettings:
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


def _card_figures(sample: CoreSample) -> dict[str, dict[str, Row]]:
    """Queue to card to figures (capacity, allocated, ...) from the quota plugin's metrics."""
    found: dict[str, dict[str, Row]] = {}
    for _, samples in sample.plugins:
        for one in samples:
            if one.name.startswith(_CARD_FIGURES) and "queue_name" in one.labels:
                figures = found.setdefault(one.labels["queue_name"], {}).setdefault(one.labels["card"], {})
                figures[one.name.removeprefix(_CARD_FIGURES)] = one.value
    return found
