"""The selectors and the allocator of kube-scheduler 1.37, as a program that reads and prints JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.controlplane.build import UnavailableError, cached, go_build, main, pinned

Json: TypeAlias = dict[str, Any]

_MODULE: Final = Path(__file__).parent / "devices"


def _target() -> Path:
    return cached("oracles") / f"devices-{pinned('k8s.io/dynamic-resource-allocation', _MODULE)}"


def program() -> Path:
    """The program around k8s.io/dynamic-resource-allocation. Raises UnavailableError where it is not built."""
    if not _target().exists():
        raise UnavailableError(
            "not built: `python -m tests.oracles.device_allocator` builds it once, in a minute, with Go"
        )
    return _target()


def build() -> Path:
    """Builds the program unless it is there; errors as of `go_build`."""
    go_build(_MODULE, ".", _target(), {})
    return _target()


def _ask(program: Path, key: str, cases: Sequence[Json]) -> list[Json]:
    answer = subprocess.run(
        [program], input=json.dumps({key: cases}), capture_output=True, text=True, check=True, timeout=300
    )
    found: list[Json] = json.loads(answer.stdout)[key]
    return found


def select(program: Path, cases: Sequence[Json]) -> list[Json]:
    """`verdict` and `error` of each `expression` on a `device` of a `driver`."""
    return _ask(program, "selectors", cases)


def allocate(program: Path, cases: Sequence[Json]) -> list[Json]:
    """`results`, `error` or `nodeError` of each `node` with `claims`, `classes`, `slices` and `held` devices."""
    return _ask(program, "allocations", cases)


if __name__ == "__main__":
    sys.exit(main("oracle of devices", build))
