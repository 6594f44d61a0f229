"""Memory and file descriptors of processes over time."""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from typing import Final, NamedTuple

#: Seconds: warm-up, and the shortest life of a process that is judged.
_WARM_UP: Final = 120.0
_SHORTEST: Final = 600.0
#: Largest growth after warm-up that is not a leak: ratio and MiB of memory, descriptors. Caches of bounded size, as
#: the 4,096 event series, fill for longer than the warm-up: about 10 MiB.
_RATIO: Final = 1.15
_MEBIBYTES: Final = 20.0
_DESCRIPTORS: Final = 24
#: MiB of any process at any time, however short its life: the cluster of the soak is small, and the smallest limit of
#: the manifests is 512 MiB.
_PEAK: Final = 300.0


class ResourceSample(NamedTuple):
    """One reading."""

    at: float
    mebibytes: float
    descriptors: int


class ResourceSampler:
    """Readings by process name."""

    def __init__(self) -> None:
        self._samples: dict[str, list[ResourceSample]] = {}

    def sample(self, pid: int, name: str) -> None:
        """Read one process; ignored if it does not exist."""
        with contextlib.suppress(OSError, StopIteration, ValueError):
            status = Path(f"/proc/{pid}/status").read_text()
            kibibytes = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
            descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            sample = ResourceSample(time.monotonic(), kibibytes / 1024, descriptors)
            self.add(name, sample)

    def add(self, name: str, sample: ResourceSample) -> None:
        """Record one reading of a process."""
        self._samples.setdefault(name, []).append(sample)

    def growth(self) -> dict[str, dict[str, float]]:
        """The longest-lived process of each run: medians of the first and last quarter after warm-up, and the peak."""
        found = {}
        for name, samples in self._samples.items():
            lived = samples[-1].at - samples[0].at
            warm = [sample for sample in samples if sample.at >= samples[0].at + min(_WARM_UP, lived / 4)]
            quarter = max(1, len(warm) // 4)
            first, last = warm[:quarter], warm[-quarter:]
            found[name] = {
                "seconds": round(lived, 1),
                "firstMiB": round(statistics.median(sample.mebibytes for sample in first), 1),
                "lastMiB": round(statistics.median(sample.mebibytes for sample in last), 1),
                "peakMiB": round(max(sample.mebibytes for sample in samples), 1),
                "firstDescriptors": statistics.median(sample.descriptors for sample in first),
                "lastDescriptors": statistics.median(sample.descriptors for sample in last),
            }
        return found

    def leaks(self) -> list[str]:
        """Processes that lived long enough and grew after warm-up, or had more memory than any may have."""
        found = []
        for name, row in self.growth().items():
            if row["peakMiB"] > _PEAK:
                found.append(f"{name}: memory of {row['peakMiB']} MiB, more than {_PEAK:g} MiB")
            if row["seconds"] < _SHORTEST:
                continue
            if row["lastMiB"] > row["firstMiB"] * _RATIO and row["lastMiB"] > row["firstMiB"] + _MEBIBYTES:
                found.append(f"{name}: memory grew from {row['firstMiB']} to {row['lastMiB']} MiB")
            if row["lastDescriptors"] > row["firstDescriptors"] + _DESCRIPTORS:
                grew = f"from {row['firstDescriptors']:g} to {row['lastDescriptors']:g}"
                found.append(f"{name}: open descriptors grew {grew}")
        return found
