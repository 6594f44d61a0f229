"""A harness with deviceshare, nodes with registrations, and pods that request vGPUs."""

from __future__ import annotations

from typing import Any

import msgspec

from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import PodObject
from tests.vectors.notation import CORES, MEMORY, NUMBER, VectorHarness

__all__ = ["CORES", "MEMORY", "NUMBER", "PERCENTAGE", "VgpuHarness", "conf"]

PERCENTAGE = "volcano.sh/vgpu-memory-percentage"


def conf(*, actions: str = "enqueue, allocate, backfill", plugins: str = "", **arguments: Any) -> str:
    """A scheduler-conf with vGPU on; `arguments` without their prefix."""
    given = {"VGPUEnable": True, **arguments}
    lines = "\n".join(f"      deviceshare.{key}: {str(value).lower()}" for key, value in given.items())
    return f"""
actions: "{actions}"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: deviceshare
    arguments:
{lines}
{plugins}"""


class VgpuHarness(VectorHarness):
    """A harness with deviceshare and queue q."""

    def __init__(self, text: str | None = None, **more: Any) -> None:
        super().__init__(conf() if text is None else text, **more)
        super().queue("q")

    def pod_changed(self, key: str) -> ObjectChanged:
        """The delta of a pod as it is, by `namespace/name`."""
        return ObjectChanged(msgspec.convert(self._pods[key], PodObject))
