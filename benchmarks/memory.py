"""`python -m benchmarks.memory FILE`: prints, as JSON, what the objects of a file cost in resident memory.

Each line is the name of a delta and its object as JSON; nodes, queues, DeviceClasses and ResourceSlices come first and
do not count.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from benchmarks.measure import DECODERS, build_core

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
    print(json.dumps({"bytes": resident_bytes() - before}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
