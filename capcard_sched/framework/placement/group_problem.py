"""The problem of `GroupPlan`: pods, nodes and domains as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class PodKind(NamedTuple):
    """Pods with one request and one set of nodes."""

    #: Base units, by resource.
    request: tuple[int, ...]
    #: Whether each node passes the static filters.
    nodes: tuple[bool, ...]


class PlanPod(NamedTuple):
    """A pod to be placed."""

    number: int
    kind: int
    #: Its role as far as roles have minimums, else "".
    role: str


class PlanPlace(NamedTuple):
    """A domain: a HyperNode, or the whole cluster."""

    #: Of the HyperNode; -1 for the whole cluster.
    number: int
    tier: int
    #: The nodes with space for a pod, by number.
    nodes: tuple[int, ...]
    #: Free and allocatable amounts of its other nodes, by resource.
    closed: tuple[tuple[int, int], ...]


class PlanUnit(NamedTuple):
    """Pods that are placed together: those that a subgroup lacks, or a single pod."""

    number: int
    #: The policy whose minimum the unit helps to meet; -1 for a single pod.
    policy: int
    pods: tuple[PlanPod, ...]
    #: The number of pods that are placed.
    need: int
    places: tuple[PlanPlace, ...]
    #: The number of the unit whose remaining pods these are: they follow it, to its place; -1 for none.
    follows: int = -1


class PlanGoal(NamedTuple):
    """What is lacking for a start; a negative number is none."""

    #: Subgroups by policy, pods, and pods by role.
    subgroups: tuple[int, ...]
    pods: int
    roles: Mapping[str, int]


class PlanChoice(NamedTuple):
    """One unit of a plan."""

    unit: int
    place: PlanPlace
    #: Numbers of pods and of their nodes.
    pods: tuple[tuple[int, int], ...]
