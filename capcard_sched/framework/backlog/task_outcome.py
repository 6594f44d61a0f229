"""The result of the attempt to place a task."""

from __future__ import annotations

from typing import Literal

import msgspec

from capcard_sched.model.refusal import Refusal


class TaskOutcome(msgspec.Struct, frozen=True):
    """The result of the last attempt to place a task, when it was not bound."""

    kind: Literal["refused", "unfit", "schedulable", "pipelined"]
    #: Refusal or fit text; empty for "schedulable" and "pipelined".
    message: str
    #: The node of the attempt ("schedulable", "pipelined"), else "".
    node: str = ""
    refusal: Refusal | None = None
    #: The capacity stays nominated beyond the session; the pod shows it in `status.nominatedNodeName`.
    nominated: bool = False
    #: The pod fits, but its gang or subgroup does not: into the nodes, or the domain, that hold most of its pods.
    fits_partly: bool = False
