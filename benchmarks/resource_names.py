"""`python -m benchmarks.resource_names`: memory and time of a session with resource names that no node offers.

Two cases at 1,000 nodes, each in a process of its own: 5 pods of 10,000 names, and 1,000 pods of 20 names. Both bind a
job of 8 pods beside them. `plain` is the second case with ordinary requests that fit no node.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

from capcard_sched.testing import Harness

#: Pods and names per pod.
_CASES = {"large": (5, 10_000), "small": (1_000, 20), "plain": (1_000, 0)}
_NODES = 1_000
_HEALTHY = 8


def _peak() -> int:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def run(case: str) -> None:
    """Run one case and print its figures."""
    pods, names = _CASES[case]
    h = Harness()
    h.queue("q")
    for index in range(_NODES):
        h.node(f"n{index}", cpu="64")
    h.step()
    before = _peak()
    h.group("healthy", min_member=_HEALTHY)
    for index in range(pods):
        h.group(f"g{index}")
        invented = {f"example.com/n{index}-{number}": "1" for number in range(names)}
        h.pod(f"p{index}", group=f"g{index}", requests=invented or {"cpu": f"{65 + index}"})
    for index in range(_HEALTHY):
        h.pod(f"healthy-{index}", group="healthy")
    began, used = time.perf_counter(), time.process_time()
    h.step()
    took, used = time.perf_counter() - began, time.process_time() - used
    bound = sum(name.startswith("healthy") for name in h.binds)
    sys.stdout.write(
        f"{case}: {_peak()} MiB at most, {before} MiB before; session {took:.2f} s, {used:.2f} CPU s; {bound} bound\n"
    )


if __name__ == "__main__":
    for each in _CASES:
        process = multiprocessing.get_context("spawn").Process(target=run, args=(each,))
        process.start()
        process.join()
