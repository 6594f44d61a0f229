"""`python -m benchmarks.decode`: what watched objects cost, from bytes of a stream to the state. Figures, no verdict.

Part of the end-to-end benchmark: the same code path as the daemon's, without the network. Times are CPU seconds of this
process, medians over the repeats.
"""

from __future__ import annotations

import statistics
import tracemalloc
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from benchmarks.api_objects import event, node, pod
from benchmarks.measure import build_core
from capcard_sched.gc import settle_memory
from capcard_sched.kube.decode import KindDecoder, LineBuffer
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.reflector import DeltaStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

app = App(name="decode", help="Measure decoding of watched objects.")

#: Pieces as the event loop hands them over.
_PIECE = 256 * 1024
#: Heartbeats per node.
_HEARTBEAT_SECONDS = 10.0


class Decoding(msgspec.Struct, frozen=True):
    """Microseconds per object, or bytes."""

    pods: int
    nodes: int
    pod_bytes: float
    node_bytes: float
    pod_decode: float
    pod_compare: float
    pod_apply: float
    pod_repeat: float
    heartbeat: float
    known_bytes: float

    @property
    def pods_per_second(self) -> float:
        """Decoded, compared and applied, one after the other."""
        return 1e6 / (self.pod_decode + self.pod_compare + self.pod_apply)

    @property
    def heartbeat_load(self) -> float:
        """Share of one core that heartbeats take, the network left out."""
        return self.nodes / _HEARTBEAT_SECONDS * self.heartbeat / 1e6


class _Chain:
    """The way of one stream, piece by piece as in the daemon, with the time each stage takes."""

    def __init__(self, kind_name: str, apply: Callable[[Delta], None]) -> None:
        kind: WatchedKind[Any] = next(kind for kind in KINDS if kind.name == kind_name)
        self._decoder = KindDecoder(kind)
        self._apply = apply
        self.known = DeltaStore(kind, Observer())
        self.emitted = 0

    def run(self, stream: bytes) -> tuple[float, float, float]:
        """CPU seconds for decoding, comparing and applying."""
        buffer = LineBuffer()
        decode = compare = apply = 0.0
        for start in range(0, len(stream), _PIECE):
            began = process_time()
            events = self._decoder.events(buffer.feed(stream[start : start + _PIECE]))
            decoded = process_time()
            out: list[Delta] = []
            for each in events:
                self.known.changed(each.object, out)  # type: ignore[union-attr]
            compared = process_time()
            for delta in out:
                self._apply(delta)
            self.emitted += len(out)
            decode += decoded - began
            compare += compared - decoded
            apply += process_time() - compared
        return decode, compare, apply


def measure_decoding(pods: int = 20_000, nodes: int = 5_000, repeats: int = 5) -> Decoding:
    """Run everything `repeats` times over."""
    pod_stream = b"".join(event("ADDED", pod(index)) for index in range(pods))
    repeat_stream = b"".join(event("MODIFIED", pod(index)) for index in range(pods))
    node_stream = b"".join(event("ADDED", node(index)) for index in range(nodes))
    beat_stream = b"".join(event("MODIFIED", node(index, beat=1)) for index in range(nodes))
    settle_memory()
    samples: list[tuple[float, ...]] = []
    for _ in range(repeats):
        state = build_core().snapshot().state
        pod_chain, node_chain = _Chain("Pod", state.apply), _Chain("Node", state.apply)
        first = pod_chain.run(pod_stream)
        again = pod_chain.run(repeat_stream)
        node_chain.run(node_stream)
        beat = node_chain.run(beat_stream)
        if (pod_chain.emitted, node_chain.emitted, len(state.tasks), len(state.nodes)) != (pods, nodes, pods, nodes):
            raise RuntimeError("what was sent once has not arrived once")
        samples.append((*first, sum(again), sum(beat)))
    decode, compare, apply, repeat, heartbeat = (
        1e6 * statistics.median(column) for column in zip(*samples, strict=True)
    )
    return Decoding(
        pods=pods,
        nodes=nodes,
        pod_bytes=len(pod_stream) / pods,
        node_bytes=len(beat_stream) / nodes,
        pod_decode=decode / pods,
        pod_compare=compare / pods,
        pod_apply=apply / pods,
        pod_repeat=repeat / pods,
        heartbeat=heartbeat / nodes,
        known_bytes=_known_bytes(pod_stream) / pods,
    )


def _known_bytes(stream: bytes) -> float:
    """Bytes of the fingerprints of all pods, including names that the state also keeps."""
    tracemalloc.start()
    chain = _Chain("Pod", lambda _: None)
    before = tracemalloc.get_traced_memory()[0]
    chain.run(stream)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return kept


def lines(found: Decoding) -> list[str]:
    """The figures as text."""
    first = (
        f"{found.pods:,} pods of {found.pod_bytes:,.0f} bytes: decoded in {found.pod_decode:.1f} us each, compared in "
        f"{found.pod_compare:.1f}, applied in {found.pod_apply:.1f}: {found.pods_per_second:,.0f} pods/s in all"
    )
    again = (
        f"the same, unchanged: {found.pod_repeat:.1f} us each; kept for comparing: {found.known_bytes:.0f} bytes each"
    )
    beats = (
        f"heartbeats of nodes of {found.node_bytes:,.0f} bytes: {found.heartbeat:.1f} us each; {found.nodes:,} nodes "
        f"every {_HEARTBEAT_SECONDS:g} s take {found.heartbeat_load:.1%} of a core, the network left out"
    )
    return [first, again, beats]


@app.default
def decode(
    *,
    pods: Annotated[int, Parameter(help="Pods in the stream.")] = 20_000,
    nodes: Annotated[int, Parameter(help="Nodes in the stream.")] = 5_000,
    repeats: Annotated[int, Parameter(help="Runs per figure.")] = 5,
) -> None:
    """Print what decoding and applying cost."""
    print("\n".join(lines(measure_decoding(pods, nodes, repeats))))


if __name__ == "__main__":
    app()
