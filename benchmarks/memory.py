"""`python -m benchmarks.memory FILE`: prints, as JSON, what the objects of a file cost in resident memory.

Each line is the name of a delta and its object as JSON; nodes, queues, DeviceClasses and ResourceSlices come first and
do not count. `bytes`: with the objects alone; `running`: once a session placed the pods and they run.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import msgspec

from benchmarks.measure import DECODERS, NOW, Resident, build_core, run_session, running
from capcard_sched.model.objects import PodObject

_FIRST = ("NodeObject", "QueueObject", "DeviceClassObject", "ResourceSliceObject")


def resident_bytes() -> int:
    """Resident set of this process. Linux only."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(path: Path) -> None:
    """Load a core line by line and measure the process in between."""
    decoders = {kind.__name__: decode for kind, decode in DECODERS.items()}
    core = build_core()
    before = 0
    with path.open("rb") as file:
        for line in file:
            kind, _, frame = line.partition(b" ")
            name = kind.decode()
            if not before and name not in _FIRST:
                gc.collect()
                before = resident_bytes()
            core.apply(decoders[name](frame))
    gc.collect()
    loaded = resident_bytes()
    pods = msgspec.json.Decoder(PodObject)
    nodes = {bind.uid: bind.node for bind in run_session(core).binds}
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b"PodObject "):
                pod = pods.decode(line.partition(b" ")[2])
                if (node := nodes.get(pod.metadata.uid)) is not None:
                    core.apply(running(pod, node))
    for later in (1, 2):
        core.step((), NOW + later)
    nodes.clear()
    gc.collect()
    print(msgspec.json.encode(Resident(loaded - before, resident_bytes() - before)).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
