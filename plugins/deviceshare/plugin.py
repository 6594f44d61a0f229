"""The hooks of deviceshare."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_AMOUNTS, NODE_PODS, filter, score
from capcard_sched.framework.api.node_view import FilterResult
from capcard_sched.framework.api.place_limits import SHARED_DEVICES, PlaceLimit
from capcard_sched.framework.api.plugin import Plugin, Reads, Sample
from capcard_sched.framework.toolkit.annotation_warnings import AnnotationWarnings
from capcard_sched.model.reasons import DEVICE_REQUEST
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import SESSION_STATUSES, TaskStatus
from capcard_sched.model.task_class import NO_ACCOUNTING
from capcard_sched.plugins.deviceshare.ascend import AscendDevices
from capcard_sched.plugins.deviceshare.device_choice import NoChoice
from capcard_sched.plugins.deviceshare.device_config import DeviceSettings
from capcard_sched.plugins.deviceshare.device_rows import DeviceRows, accounting_of, samples
from capcard_sched.plugins.deviceshare.device_states import evaluate
from capcard_sched.plugins.deviceshare.deviceshare_arguments import DeviceShareArguments, check_arguments
from capcard_sched.plugins.deviceshare.exclusive_cards import ExclusiveCards
from capcard_sched.plugins.deviceshare.free_devices import FreeDevices
from capcard_sched.plugins.deviceshare.gpushare import GpuShareDevices
from capcard_sched.plugins.deviceshare.result_cache import DeviceResultCache
from capcard_sched.plugins.deviceshare.shared_card import CardStates
from capcard_sched.plugins.deviceshare.vgpu import VgpuDevices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import numpy.typing as npt

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.card_reasons import CardReasons
    from capcard_sched.plugins.deviceshare.device_rows import NodeDevices
    from capcard_sched.plugins.deviceshare.device_states import DeviceResult, RequestResults
    from capcard_sched.plugins.deviceshare.device_type import DeviceType
    from capcard_sched.plugins.deviceshare.shared_card import Cause

_NEVER = float("-inf")


class CardContext(NamedTuple):
    """The plugin's part of a signature."""

    #: The job of a pod whose cards depend on where others of its job are, else "".
    group: str
    #: Numbers of the rules of exclusive cards that select the pod.
    rules: tuple[int, ...]


class DevicesLostError(Exception):
    """A node does not take a pod that passed its filter: an error of the scheduler."""


class DeviceShare(Plugin):
    """Shares GPUs between pods: finds cards for each container, and writes them on the pod with its binding.

    Cards are read from node annotations that a device plugin writes, and bookings from pod annotations; nothing else is
    stored. A pod that requests no shared device is skipped.
    """

    name = "deviceshare"
    Arguments = DeviceShareArguments
    arguments: DeviceShareArguments
    reads = Reads.CONFIG_MAPS

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        given = self.arguments
        self._cards = CardStates()
        self.types: list[DeviceType] = []
        if given.gpu_sharing or given.gpu_number:
            self.types.append(GpuShareDevices(self._cards, by_number=given.gpu_number))
        if given.vgpu:
            self.types.append(VgpuDevices(given.policy, given.weight, self._cards))
        if given.ascend_310p:
            self.types.append(AscendDevices(self._cards, given.weight))
        self._exclusive = ExclusiveCards(given.exclusive_rules if given.vgpu else ())
        self.rows = DeviceRows(self.types)
        self._session: Session
        self.cache = DeviceResultCache(self.types, self.rows, self._cards)
        self._free = FreeDevices(self.name, self.types, self.rows, self.cache)
        #: What the states of nodes without pods depend on, and these states: int64 [nodes].
        self._idle: tuple[tuple[int, ...], npt.NDArray[np.int64]] = (), np.zeros(0, dtype=np.int64)
        self._settings = DeviceSettings(given.config_namespace, given.config_map)
        self._warnings = AnnotationWarnings(DEVICE_REQUEST)

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> DeviceShareArguments:
        arguments = problems.decode(DeviceShareArguments, raw)
        assert isinstance(arguments, DeviceShareArguments)
        check_arguments(arguments, problems)
        return arguments

    # --- session ----------------------------------------------------------------------------------------------------

    def prepare(self, session: Session) -> None:
        """Take up registrations and pods. O(what changed); O(nodes) when the set of nodes did."""
        self._session = session
        if not self.types:
            session.account_devices(NO_ACCOUNTING)
            return
        changed = self._settings.changed(session)
        if changed:
            for kind in self.types:
                kind.use(self._settings.config)
        renumbered = self.rows.catch_up(session, anew=changed)
        if changed or renumbered:
            self.cache.clear()
            self._free.epoch += 1
        self.cache.shrink()
        session.snapshot.set_shared_devices(self._free)
        session.account_devices(accounting_of(self.types, self.rows))
        self._warn(session)

    @property
    def config_maps(self) -> frozenset[tuple[str, str]]:
        return frozenset({(self.arguments.config_namespace, self.arguments.config_map)})

    def _warn(self, session: Session) -> None:
        """Events about registrations, bookings and requests that do not count as they are written, once each."""
        for subject, reason, text in self.rows.news:
            session.results.notice(subject, reason, text)
        self.rows.news.clear()
        for node, notes in self.rows.node_writes:
            session.results.annotate_node(node, notes)
        self.rows.node_writes.clear()
        self._warnings.report_pods(session, self._problem_of)

    def _problem_of(self, task: Task) -> str:
        if not task.cls.device_containers:
            return ""
        problems = (kind.problem_of(task.cls) for kind in self.types)
        return "; ".join(problem for problem in problems if problem)

    def next_wakeup(self) -> float | None:
        """When the devices of a node end by themselves, if a pod waits."""
        moment = self._session.if_pods_wait(self.rows.next_look(self._session.now))
        return None if moment is None else moment + 1

    def metrics(self) -> Iterator[Sample]:
        if self.types:
            yield from samples(self.rows, self._session.snapshot.tasks_by_uid)
            yield Sample("vgpu_device_config_invalid", {}, float(bool(self._settings.problem)))

    # --- requests ---------------------------------------------------------------------------------------------------

    def results(self, cls: TaskClass) -> RequestResults | None:
        """The results to a class of pods; None when it requests no devices."""
        return self.cache.of(cls)

    def signature(self, queue: Queue, task: Task) -> CardContext | None:
        results = self.results(task.cls)
        return None if results is None else self._context_of(results, task)

    def _context_of(self, results: RequestResults, task: Task) -> CardContext | None:
        """What the cards of a pod depend on besides its request; None for nothing."""
        group = task.job.key if results.spreads_group and task.job is not None else ""
        rules = self._exclusive.rules_of(task.labels)
        return CardContext(group, rules) if group or rules else None

    def _own_result(
        self, results: RequestResults, node: Node, context: CardContext | None, *, future: bool
    ) -> DeviceResult:
        """The result of one node for a pod that is bound to single cards."""
        devices = self.rows.at(node)
        if devices is None:
            return results.in_state(int(self.rows.numbers[node.row]))
        cards = devices.future if future else devices.cards
        closed = self._closed_cards(results, context, devices, future=future)
        return evaluate(self.types, results.requests, cards, closed)

    def _closed_cards(
        self, results: RequestResults, context: CardContext | None, devices: NodeDevices, *, future: bool = False
    ) -> list[Mapping[int, Cause]]:
        """By kind, the cards of a node that are closed to this very pod."""
        job = None if context is None else self._session.jobs.get(context.group)
        uids = () if job is None else job.tasks.keys()
        rules = () if context is None else context.rules
        tasks = self._session.snapshot.tasks_by_uid
        found: list[Mapping[int, Cause]] = []
        for kind, request, ledger in zip(self.types, results.requests, devices.ledgers, strict=True):
            if request is None or ledger is None:
                found.append({})
                continue
            closed = kind.closed_cards(request, ledger, uids)
            if rules and kind.shares_cards:
                closed = {**self._exclusive.closed(rules, ledger, tasks, future=future), **closed}
            found.append(closed)
        return found

    def _own_answers(self, signature: PodSignature, view: NodeView) -> list[DeviceResult]:
        """The result of every entry for a pod that is bound to single cards."""
        results = self.results(signature.cls)
        assert results is not None
        context = signature.context(self.name)
        nodes = view.nodes
        return [self._own_result(results, nodes[row], context, future=view.future) for row in view.rows.tolist()]

    # --- nodes ------------------------------------------------------------------------------------------------------

    def node_state(self) -> npt.NDArray[np.int64] | None:
        return self.rows.numbers if self.types else None

    def next_node_state(self, cls: TaskClass, number: int) -> int:
        results = self.results(cls)
        return number if results is None else results.after(number)

    def place_limits(self, tasks: Sequence[Task]) -> Iterator[PlaceLimit]:
        """The nodes whose devices take one of the pods while no pod uses them."""
        results = self.results(tasks[0].cls)
        if results is None or not self.rows.by_node:
            return
        table = self._session.nodes
        stamp = self.rows.offers, self._free.epoch, table.generation, len(table)
        if stamp != self._idle[0]:
            self._idle = stamp, np.array([self._free.idle_state(node) for node in table.nodes], dtype=np.int64)
        yield PlaceLimit(SHARED_DEVICES, nodes=results.scores(self._idle[1]) != _NEVER, key=self.rows.offers)

    def _reads_state(self, signature: PodSignature) -> bool:
        return self.results(signature.cls) is not None and not self._reads_cards(signature)

    def _reads_cards(self, signature: PodSignature) -> bool:
        results, context = self.results(signature.cls), signature.context(self.name)
        return results is not None and (results.is_bound_to_cards or (context is not None and bool(context.rules)))

    def _scores_state(self, signature: PodSignature) -> bool:
        return self.arguments.weight > 0 and self._reads_state(signature)

    def _scores_cards(self, signature: PodSignature) -> bool:
        return self.arguments.weight > 0 and self._reads_cards(signature)

    @filter(reads=NODE_PODS, when=_reads_cards)
    def filter_by_cards(self, signature: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        own = self._own_answers(signature, rows)
        texts = np.array([each.reason for each in own], dtype=object)
        for reason in sorted({each.reason for each in own} - {""}):
            verdict.reject(texts == reason, Code.UNSCHEDULABLE, reason)

    @filter(reads=NODE_AMOUNTS, when=_reads_state)
    def filter_by_state(self, signature: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        results = self.results(signature.cls)
        assert results is not None
        numbers = self.rows.numbers_of(rows, self.name)
        refused = results.scores(numbers) == _NEVER
        if not refused.any():
            return
        if type(verdict) is FilterResult:  # it keeps no reasons
            verdict.reject(refused, Code.UNSCHEDULABLE, "")
            return
        reasons, texts = results.reasons(numbers[refused])
        of_entry = np.full(len(numbers), -1, dtype=np.int64)
        of_entry[refused] = reasons
        lowest = {reason: int(numbers[of_entry == reason].min()) for reason in set(reasons.tolist())}
        for reason in sorted(lowest, key=lowest.__getitem__):
            verdict.reject(of_entry == reason, Code.UNSCHEDULABLE, texts[reason])

    @score(reads=NODE_PODS, when=_scores_cards)
    def score_by_cards(self, signature: PodSignature, rows: NodeView) -> Scores:
        return _finite(np.array([each.score for each in self._own_answers(signature, rows)], dtype=np.float64))

    @score(reads=NODE_AMOUNTS, when=_scores_state)
    def score_by_state(self, signature: PodSignature, rows: NodeView) -> Scores:
        results = self.results(signature.cls)
        assert results is not None
        return _finite(results.scores(self.rows.numbers_of(rows, self.name)))

    def rejection_details(self, task: Task, rows: NodeView) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Figures per card of the nodes that a filter rejects, the nearest to fitting first."""
        results = self.results(task.cls)
        if results is None:
            return
        found = []
        for row in rows.rows.tolist():
            devices = self.rows.at(rows.nodes[row])
            reasons = None if devices is None else self._reasons(results, task, devices)
            if reasons is not None:
                found.append((reasons.distance, rows.nodes[row].name, reasons.texts))
        for _, name, texts in sorted(found):
            yield name, texts

    def _reasons(self, results: RequestResults, task: Task, devices: NodeDevices) -> CardReasons | None:
        """The figures of the first kind of devices that refuses the pod."""
        closed = self._closed_cards(results, self._context_of(results, task), devices)
        for index, (kind, request) in enumerate(zip(self.types, results.requests, strict=True)):
            ledger = devices.ledgers[index]
            if request is None:
                continue
            if ledger is None:
                return None
            found = kind.choose(ledger.cards, request, closed[index])
            if isinstance(found, NoChoice):
                return kind.reasons_of(task.cls, found, ledger.uuids)
        return None

    # --- placements -------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        """Give pods their devices; a pod whose eviction is undone stays on those it has."""
        results = self.results(placement.cls)
        if results is None:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            if task.status in SESSION_STATUSES:
                self._take(results, task, node)
            else:
                self._set_leaving(task, node, leaving=False)

    def on_deallocate(self, placement: Placement) -> None:
        """Take devices back from pods that were placed in this session; others are on their way out."""
        if self.results(placement.cls) is None:
            return
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            if task.status not in SESSION_STATUSES:
                self._set_leaving(task, node, leaving=True)
                continue
            devices = self.rows.at(node)
            if devices is not None:
                devices.release(task.uid)
                self.rows.write(node)

    def _take(self, results: RequestResults, task: Task, node: Node) -> None:
        devices, waits = self.rows.at(node), task.status is TaskStatus.PIPELINED
        found = self._found(results, task, node, future=waits)
        if found.reason and not waits:  # an eviction plan allocates on what its victims still hold
            found = self._found(results, task, node, future=True)
        if found.reason or devices is None:
            if waits:  # it waits for the amounts of pods that leave; the cards are chosen when they are gone
                return
            raise DevicesLostError(f"node {node.name} does not take pod {task.key}: {found.reason}")
        for ledger, shares in zip(devices.ledgers, found.shares, strict=True):
            if ledger is not None and shares:
                ledger.book(task.uid, shares)
        self.rows.write(node)

    def _found(self, results: RequestResults, task: Task, node: Node, *, future: bool) -> DeviceResult:
        """What a node has for one pod now, or once the pods that leave are gone."""
        context = self._context_of(results, task)
        if results.is_bound_to_cards or (context is not None and context.rules):
            return self._own_result(results, node, context, future=future)
        devices = self.rows.at(node)
        if future and devices is not None:
            return results.in_state(self.rows.states.number(devices.future))
        return results.in_state(int(self.rows.numbers[node.row]))

    def _set_leaving(self, task: Task, node: Node, *, leaving: bool) -> None:
        devices = self.rows.at(node)
        if devices is not None:
            devices.set_leaving(task.uid, leaving=leaving)
            self.rows.write(node)

    def node_lock(self, placement: Placement) -> dict[str, str] | None:
        return self.binding_lock(placement) if self.arguments.node_lock else None

    def binding_lock(self, placement: Placement) -> dict[str, str] | None:
        results = self.results(placement.cls)
        if results is None:
            return None
        for kind, request in zip(self.types, results.requests, strict=True):
            if request is not None and kind.lock:
                return dict.fromkeys((task.uid for task in placement.tasks), kind.lock)
        return None

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]] | None:
        if self.results(placement.cls) is None:
            return None
        found: dict[str, dict[str, str]] = {}
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            devices = self.rows.at(node)
            if devices is not None:
                found[task.uid] = self._written(task, node, devices)
        return found

    def _written(self, task: Task, node: Node, devices: NodeDevices) -> dict[str, str]:
        written: dict[str, str] = {}
        for kind, ledger in zip(self.types, devices.ledgers, strict=True):
            shares = () if ledger is None else ledger.held.get(task.uid, ())
            if ledger is not None and shares:
                written |= kind.annotations(task, shares, ledger, node, self._session.now, devices.last_order)
        order = max((kind.order_in(written) for kind in self.types), default=0)
        devices.last_order = max(devices.last_order, order)
        return written


def _finite(scores: Scores) -> Scores:
    """Scores with 0 for a node that does not fit: a filter rejects it."""
    return np.where(scores == _NEVER, 0.0, scores)


__all__ = ["DeviceShare", "DeviceShareArguments", "DevicesLostError"]
