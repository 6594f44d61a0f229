"""Texts about evictions in tables; those of events have the form that other tools match."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The text of an eviction by an action.
_TEXT: Final = re.compile(r"(preempt|reclaim): (.+) on node \S+ for (\S+?)/(\S+) of queue (\S+)")
_DONE: Final = {"preempt": "preempted", "reclaim": "reclaimed"}
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def preemptor_namespace(message: str) -> str:
    """The namespace of the preemptor, "" for a text of another form."""
    match = _TEXT.fullmatch(message)
    return match.group(3) if match is not None else ""


def preemptor_text(message: str, workloads: Mapping[str, str] = _NONE) -> str:
    """`serving/chat reclaimed 2 NVIDIA-H200`: queue and workload of the preemptor, and what it lacked.

    `workloads`: pods, as namespace/name, to the names of their workloads; the pod itself without one. A text of
    another form stays as it is.
    """
    match = _TEXT.fullmatch(message)
    if match is None:
        return message
    action, lacking, namespace, pod, queue = match.groups()
    parts = (part.rpartition(": ") for part in lacking.split(", "))
    amounts = [f"{amount} {name}".strip() for name, _, amount in parts]
    return f"{queue}/{workloads.get(f'{namespace}/{pod}', pod)} {_DONE[action]} {', '.join(amounts)}"
