"""What a plugin that shares devices between pods offers to others: free and usable amounts by node state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy as np
    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, NodeView, Rows
    from capcard_sched.model.job import Node
    from capcard_sched.model.task_class import TaskClass


class DeviceChanges(NamedTuple):
    """The device of each node that one more pod changes."""

    #: Whether the node takes the pod; the devices of the others do not count: bool [k].
    fits: Mask
    #: [k] devices.
    before: Any
    after: Any


class SharedDevices(Protocol):
    """Equal states of nodes are one number, and equal requests are equal; amounts are thousandths of a device.

    Numbers and requests hold until `epoch` changes.
    """

    @property
    def epoch(self) -> int:
        """Changes when numbers or requests get another meaning."""

    @property
    def offers(self) -> int:
        """Changes when a node has other devices; their use does not count."""

    def request_of(self, cls: TaskClass) -> Hashable | None:
        """The request of a class; None when its pods get no shared devices."""

    def states(self, view: NodeView) -> Rows:
        """The state of each entry: int64 [k]."""

    def idle_state(self, node: Node) -> int:
        """The state of a node without pods."""

    def state_after(self, request: Any, state: int) -> int:
        """The state after one more pod; -1 when the node does not take it."""

    def states_after(self, request: Any, states: Rows) -> Rows:
        """`state_after` of each state: int64 [k]."""

    def changes(self, request: Any, states: Rows) -> DeviceChanges | None:
        """The device of each state that one more pod changes; None where pods may change several."""

    def devices(self, state: int) -> Sequence[Hashable]:
        """The devices of a node; equal ones are alike."""

    def free_part(self, device: Any) -> int:
        """The smallest part, over the amounts of a device, that no pod holds; 0 for one that takes no pod at all."""

    def free_parts(self, devices: Any) -> Rows:
        """`free_part` of each device of `DeviceChanges`: int64 [k]."""

    def fitting(self, requests: Sequence[Any | None]) -> Callable[[Any], Mask]:
        """A function of a device: which requests want a share that it has, False for None: bool [requests]."""

    def fitting_many(self, requests: Sequence[Any | None]) -> Callable[[Any], npt.NDArray[np.bool_]]:
        """`fitting` for the devices of `DeviceChanges`: bool [k, requests]."""

    def number(self, request: Any) -> int:
        """The number of different devices that a pod needs."""

    def model(self, device: Any) -> str:
        """The model of a device, as its registration names it."""
