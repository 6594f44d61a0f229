"""`python -m benchmarks.start`: CPU time of a start beside running pods: pages of lists, then the first session.

The objects are those of scene S1 (`benchmarks/e2e/peer_scenes.py`) as the API server lists them once a scheduler ran.
No API server, no requests: decoding, application and session, in this process.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import defaultdict
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from benchmarks.e2e import peer_scenes
from benchmarks.e2e.objects import Document
from benchmarks.measure import NOW, core_with
from capcard_sched.gc import settle_memory
from capcard_sched.kube.decode import PAGE, KindDecoder, UndecodableObject
from capcard_sched.kube.kinds import KINDS
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.intents import Bind

app = App(name="start", help="Measure a start beside running pods.")

#: Pods of scene S1.
_PODS: Final = 140_000
#: The status of a PodGroup whose pods are bound.
_RUNNING: Final[Document] = {
    "phase": "Running",
    "conditions": [
        {
            "type": "Scheduled",
            "status": "True",
            "reason": "tasks in gang are ready to be scheduled",
            "transitionID": "session-1",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


@app.default
def bench(*, pods: Annotated[int, Parameter(help="Bound pods, in gangs of 8.")] = 150_000) -> None:
    """Take in all pages, then run one session; prints CPU seconds."""
    pages = {kind: _pages(items) for kind, items in _objects(pods / _PODS).items()}
    gc.collect()
    settle_memory()
    core = core_with(peer_scenes.CONF, "scheduler-conf")
    began, decoding = time.process_time(), 0.0
    for kind in KINDS:
        decoder = KindDecoder(kind)
        for body in pages.get(kind.type.__name__.removesuffix("Object"), ()):
            before = time.process_time()
            page = decoder.page(body)
            decoding += time.process_time() - before
            core.apply_all([ObjectChanged(item) for item in page.items if not isinstance(item, UndecodableObject)])
    listed = time.process_time()
    result = core.step((), NOW)
    ended = time.process_time()
    bound = sum(isinstance(intent, Bind) for intent in result.intents)
    print(
        f"{pods:,} pods: lists {listed - began:.2f} CPU s, of which decoding {decoding:.2f}; first session "
        f"{ended - listed:.2f}; together {ended - began:.2f}; {bound} new pods bound"
    )


def _objects(factor: float) -> dict[str, list[Document]]:
    """By kind, with what the API server adds to an object."""
    load, numbers = peer_scenes.SCENES["S1"].load(factor), itertools.count(1)
    nodes = [*peer_scenes.scene_nodes(round(peer_scenes.SCENES["S1"].nodes * factor))]
    present = len(nodes) + len(load.before)
    gangs = [document for gang in load.gangs for document in (gang.group, *gang.pods) if document]
    found: defaultdict[str, list[Document]] = defaultdict(list)
    for document in (*nodes, *load.before, *gangs):
        number = next(numbers)
        added = {"uid": f"uid-{number}", "resourceVersion": str(number), "creationTimestamp": "2026-01-01T00:00:00Z"}
        kind = document["kind"]
        status = {"status": _RUNNING} if kind == "PodGroup" and number <= present else {}
        found[kind].append({**document, "metadata": {**document["metadata"], **added}, **status})
    return found


def _pages(items: list[Document]) -> list[bytes]:
    places = range(0, len(items), PAGE)
    return [msgspec.json.encode({"metadata": {}, "items": items[place : place + PAGE]}) for place in places]


if __name__ == "__main__":
    app()
