"""`python -m benchmarks.ledger`: what the recorder of `web --ledger` costs, as JSON.

5,000 nodes and 50,000 pods that hold cards, in gangs of eight, are the first step. Then gangs end one by one, and
gangs of one pod begin and end. CPU seconds of the process; bytes of memory and of the database file.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks import api_objects
from benchmarks.measure import DECODERS
from benchmarks.memory import resident_bytes
from capcard_sched.ledger.usage_ledger import UsageLedger, open_ledger
from capcard_sched.model.deltas import Delta, ObjectGone
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject

_GANG = 8
#: Unix seconds of the first step: after the timestamps of the objects.
_BEGIN = 1_795_000_000.0


def decoded(kind: type, obj: object) -> Delta:
    """The delta of an object as an API server sends it."""
    return DECODERS[kind](msgspec.json.encode(obj))


def gang(first: int, size: int, nodes: int) -> list[Delta]:
    """A PodGroup and its bound pods, the first one with this index; they wait without `nodes`."""
    pods = [
        api_objects.pod(first + at, gang=size, node=f"gpu-{(first + at) % nodes:05d}" if nodes else "")
        for at in range(size)
    ]
    meta = pods[0]["metadata"]
    group = {
        "kind": "PodGroup",
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "metadata": {
            "name": meta["annotations"]["scheduling.k8s.io/group-name"],
            "namespace": meta["namespace"],
            "uid": f"group-{first}",
            "creationTimestamp": meta["creationTimestamp"],
            "ownerReferences": meta["ownerReferences"],
        },
        "spec": {"minMember": size, "queue": meta["labels"]["volcano.sh/queue-name"]},
        "status": {"phase": "Running" if nodes else "Pending"},
    }
    return [decoded(PodGroupObject, group), *(decoded(PodObject, pod) for pod in pods)]


def gone(deltas: list[Delta]) -> Iterator[Delta]:
    """The deletion of a gang."""
    for delta in reversed(deltas):
        meta = delta.object.metadata  # type: ignore[union-attr]
        kind = "Pod" if isinstance(delta.object, PodObject) else "PodGroup"  # type: ignore[union-attr]
        yield ObjectGone(kind, meta.namespace or "", meta.name, meta.uid)


def measure(nodes: int, pods: int, jobs: int, file: Path) -> dict[str, float]:
    """Record the first lists, the end of `jobs` gangs, and `jobs` jobs of one pod."""
    first = [decoded(NodeObject, api_objects.node(index)) for index in range(nodes)]
    gangs = [gang(index, _GANG, nodes) for index in range(0, pods, _GANG)]
    first += [delta for one in gangs for delta in one]
    gc.collect()
    with open_ledger(str(file)) as ledger:
        before, began = resident_bytes(), time.process_time()
        ledger.start("bench", "live", _BEGIN)
        ledger.feed(_BEGIN, first)
        found = {"first_cpu_seconds": time.process_time() - began}
        gc.collect()
        found |= {"first_bytes": resident_bytes() - before, "first_file_bytes": _size(ledger, file)}
        began, now = time.process_time(), _BEGIN
        for one in gangs[:jobs]:
            now += 1.0
            ledger.feed(now, gone(one))
        found["end_cpu_seconds_per_1000_gangs"] = (time.process_time() - began) * 1000 / jobs
        size, began = _size(ledger, file), time.process_time()
        for index in range(jobs):
            lone = gang(10**6 + index, 1, nodes)
            ledger.feed(now + 1.0, lone)
            ledger.feed(now + 2.0, gone(lone))
            now += 2.0
        found["lone_cpu_seconds_per_1000_jobs"] = (time.process_time() - began) * 1000 / jobs
        found["lone_file_bytes_per_1000_jobs"] = (_size(ledger, file) - size) * 1000 / jobs
    return found


def _size(ledger: UsageLedger, file: Path) -> int:
    """Bytes of the database, with the log of writes in it."""
    ledger.flush()
    with ledger.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.stat().st_size


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.nodes, given.pods, given.jobs, Path(folder) / "ledger.db")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
