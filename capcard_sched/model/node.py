"""Nodes: the facts that are not columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.objects import Taint
    from capcard_sched.model.task import Task


class Node:
    """One node. Amounts live in the state's columns at `row`; here stand labels, taints and the tasks on it.

    A node named by a pod but not (yet, or no longer) known to the API server is a placeholder: `known` is False, `row`
    is -1, and its tasks are kept for the day it (re)appears (W-23).
    """

    __slots__ = (
        "allocatable",
        "annotations",
        "capacity",
        "created",
        "generation",
        "images",
        "known",
        "labels",
        "name",
        "resource_version",
        "row",
        "taints",
        "tasks",
        "uid",
        "unschedulable",
    )

    name: str
    uid: str
    known: bool
    #: Row in the node columns; rows are in order of node name whenever a session is open.
    row: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    #: Base units, every resource the node names.
    allocatable: Mapping[str, int]
    capacity: Mapping[str, int]
    taints: tuple[Taint, ...]
    unschedulable: bool
    #: Image name to size in bytes.
    images: Mapping[str, int]
    created: float
    #: Raised whenever labels, annotations, taints, images, unschedulable or allocatable change.
    generation: int
    resource_version: str
    #: Tasks that hold room here, ours and foreign, by uid.
    tasks: dict[str, Task]

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid = ""
        self.known = False
        self.row = -1
        self.labels = {}
        self.annotations = {}
        self.allocatable = {}
        self.capacity = {}
        self.taints = ()
        self.unschedulable = False
        self.images = {}
        self.created = 0.0
        self.generation = 0
        self.resource_version = ""
        self.tasks = {}

    def __repr__(self) -> str:
        return f"Node({self.name}, row={self.row})"
