"""One kind of shared devices: the seam between the plugin and vGPU, gpushare, Ascend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

#: One device.
WHOLE: Final = 1000

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.card_columns import CardBatch
    from capcard_sched.plugins.deviceshare.card_ledger import BookedDevices, CardLedger, Cards, LeastShares, Shares
    from capcard_sched.plugins.deviceshare.card_reasons import CardReasons
    from capcard_sched.plugins.deviceshare.device_choice import DeviceChoice, NoChoice
    from capcard_sched.plugins.deviceshare.device_config import DeviceConfig
    from capcard_sched.plugins.deviceshare.share_choice import ShareChooser
    from capcard_sched.plugins.deviceshare.shared_card import Cause, SharedCard


class NodeOffer(NamedTuple):
    """The devices of one kind on a node, without pods."""

    uuids: Sequence[str]
    idle: Cards
    #: Messages about registrations that cannot be used, or not as they are written.
    warnings: tuple[str, ...] = ()
    #: Unix seconds at which the offer ends unless the node changes before; None when it does not.
    until: float | None = None


class DeviceType(ABC):
    """A kind of devices. Requests are opaque to the plugin: hashable values, equal for equal wishes."""

    #: As in messages.
    name: ClassVar[str]
    #: Annotation by which its device plugin locks a node, "" for none.
    lock: ClassVar[str] = ""
    #: Whether rules of exclusive cards apply to its devices.
    shares_cards: ClassVar[bool] = False
    #: Annotation that names the devices of a bound pod.
    note_key: ClassVar[str]

    def use(self, config: DeviceConfig) -> None:  # noqa: B027 -- only some kinds have settings
        """Take other settings; every offer and every request is read again."""

    @property
    def missing(self) -> str:
        """Reason of nodes without such devices."""
        return f"node not initialized with device{self.name}"

    @property
    def own_resources(self) -> frozenset[str]:
        """Resources that the ledger accounts for: a node need not have them free."""
        return frozenset()

    @property
    def uncounted_resources(self) -> frozenset[str]:
        """Resources that count nowhere: neither nodes nor queues offer them."""
        return frozenset()

    @property
    def shares(self) -> frozenset[str]:
        """Resources that queues limit only where they name them."""
        return frozenset()

    @property
    def accounting_version(self) -> Hashable:
        """Equal versions charge every class alike."""
        return self.name

    def charge(self, cls: TaskClass, smallest: int) -> Mapping[str, int]:
        """What queues and jobs are charged for a pod, in thousandths, where that differs from its requests.

        `smallest`: memory of the smallest registered card, 0 without any.
        """
        return {}

    def placed_charge(self, cls: TaskClass, notes: Mapping[str, str]) -> Mapping[str, int]:
        """The amounts that the annotations of a placed pod fix, in thousandths, where they differ from `charge`."""
        return {}

    def totals(self, memory: int, cards: int) -> Mapping[str, int]:
        """Amounts of the cluster, in thousandths, from memory and number of all registered cards."""
        return {}

    @abstractmethod
    def request_of(self, cls: TaskClass) -> Any | None:
        """The request of the pods of a class; None without one."""

    def problem_of(self, cls: TaskClass) -> str:
        """What is wrong with the request of a class, "" for nothing."""
        return ""

    @abstractmethod
    def offer_of(self, node: Node, now: float) -> NodeOffer | None:
        """The devices of a node at `now` (Unix seconds); None when it has none. Warnings may come without cards."""

    def node_write(self, node: Node, now: float, written: float, last: Mapping[str, str]) -> dict[str, str] | None:
        """Annotations to write on a node. `written`: when that happened last, Unix seconds; `last`: those of then."""
        return None

    @abstractmethod
    def choose(self, cards: Cards, request: Any, closed: Mapping[int, Cause]) -> DeviceChoice | NoChoice:
        """The devices a pod gets. `closed`: indexes of devices that are closed to this very pod."""

    def chooser(self, request: Any) -> ShareChooser | None:
        """`choose` for many nodes at once; None for a request that it cannot serve."""
        return None

    @abstractmethod
    def fits(self, card: SharedCard, request: Any) -> bool:
        """Whether a device has one of the shares that a request wants."""

    def fitting(self, requests: Sequence[Any | None]) -> Callable[[SharedCard], npt.NDArray[np.bool_]]:
        """`fits` of many requests, for one device after the other; False for None."""

        def of_card(card: SharedCard) -> npt.NDArray[np.bool_]:
            return np.array([request is not None and self.fits(card, request) for request in requests], dtype=bool)

        return of_card

    def fitting_cards(self, requests: Sequence[Any | None]) -> Callable[[CardBatch], npt.NDArray[np.bool_]]:
        """`fitting` for many cards at once that are not cut by MIG: bool [k, requests]; with `chooser` only."""
        raise NotImplementedError

    @abstractmethod
    def number(self, request: Any) -> int:
        """The number of different devices that a pod needs."""

    def free_part(self, card: SharedCard) -> int:
        """What no pod holds of a device, in thousandths."""
        model = card.model
        return max(0, model.memory - card.used_memory) * WHOLE // model.memory if model.memory else 0

    def free_parts(self, cards: CardBatch) -> npt.NDArray[np.int64]:
        """`free_part` of many cards: int64 [k]; with `chooser` only."""
        raise NotImplementedError

    @abstractmethod
    def weighted(self, score: float) -> float:
        """The score of a node, of the score of a choice."""

    def weighted_many(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """`weighted` of each."""
        return np.array([self.weighted(score) for score in scores.tolist()], dtype=np.float64)

    @abstractmethod
    def refusal(self, refused: NoChoice) -> str:
        """The reason of a node without a choice."""

    def reasons_of(self, cls: TaskClass, refused: NoChoice, uuids: Sequence[str]) -> CardReasons | None:
        """Figures per device behind a refusal, for `explain`; None for none."""
        return None

    def is_bound_to_cards(self, request: Any) -> bool:
        """Whether nodes of equal cards may have different results."""
        return False

    def spreads_group(self, request: Any) -> bool:
        """Whether the result depends on where other pods of the PodGroup are."""
        return False

    def closed_cards(
        self,
        request: Any,
        ledger: CardLedger,
        group: Collection[str],
    ) -> Mapping[int, Cause]:
        """Indexes of devices that are closed to this very pod. `group`: uids of the pods of its PodGroup."""
        return {}

    def note_of(self, task: Task) -> str:
        """The text in the pod's annotations that names its devices, "" for none."""
        return task.device_notes.get(self.note_key, "")

    def takes_devices(self, cls: TaskClass) -> bool:
        """Whether bound pods of a class have an annotation."""
        return self.request_of(cls) is not None

    @abstractmethod
    def booked(self, task: Task, ledger: CardLedger) -> BookedDevices:
        """The devices that `note_of` names, on the cards of the pod's node."""

    @abstractmethod
    def least(self, cls: TaskClass) -> Iterator[LeastShares]:
        """What bound pods of a class hold whatever their annotation names: their request, by container."""

    @abstractmethod
    def annotations(
        self, task: Task, shares: Shares, ledger: CardLedger, node: Node, moment: float, last: int
    ) -> dict[str, str]:
        """Everything that is written on a pod when it is bound.

        `moment`: Unix seconds; `last`: the order number that the pod bound before it on the node got, 0 for none.
        """

    def order_in(self, notes: Mapping[str, str]) -> int:
        """The order number among a pod's annotations, 0 for none."""
        return 0
