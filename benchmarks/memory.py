"""`python -m benchmarks.memory WORKLOAD NODES PODS`: prints, as JSON, what pods cost in resident memory."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from benchmarks.measure import build_core, encode, take_in
from benchmarks.workloads import make


def resident_bytes() -> int:
    """Resident set of this process. Linux only."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(name: str, nodes: int, pods: int) -> None:
    """Load a core step by step and look at the process in between."""
    workload = make(name, nodes, pods)
    frames = encode(workload)
    first = len(workload.nodes) + len(workload.queues)
    del workload
    core = build_core()
    take_in(core, frames[:first])
    gc.collect()
    before = resident_bytes()
    take_in(core, frames[first:])
    gc.collect()
    print(json.dumps({"bytes": resident_bytes() - before}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
