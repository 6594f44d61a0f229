"""Taking cards back, measured: one session on a full cluster, and what becomes of its evictions afterwards."""

from __future__ import annotations

import statistics
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import msgspec

from benchmarks.eviction_scenes import SCENES, Scene, make_scene
from benchmarks.measure import NOW, core_with
from benchmarks.workloads import GPU, MIG, MPS
from capcard_sched.gc import settle_memory
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.intents import Bind, Evict

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core, StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.objects import PodObject

#: How many of a resource make one card on the nodes of `workloads`.
_PER_CARD = {GPU: 1, MPS: 4, MIG: 7}
_ACTIONS = ("preempt", "reclaim")
#: Sessions after the first one in which everything has to come to rest.
_MOST_SESSIONS = 20


class Taking(msgspec.Struct, frozen=True):
    """Figures of one scene at one size; times are medians over the repeats, in seconds."""

    scene: str
    size: str
    nodes: int
    pods: int
    #: Preemptors, and the cards they request.
    takers: int
    asked: float
    #: The session that selects victims for all of them: wall-clock time, CPU time, CPU time of the action.
    session_seconds: float
    session_cpu_seconds: float
    action_cpu_seconds: float
    #: The longest of the sessions after it, CPU time.
    later_cpu_seconds: float
    #: Evictions on statements in the session, including undone ones; committed evictions, and their number of groups.
    tried: int
    victims: int
    groups_hit: int
    #: Evictions of all sessions until nothing changes.
    evictions: int
    #: Preemptors bound by then, and their cards; cards of the victims.
    bound: int
    cards: float
    cards_freed: float
    #: Wasted evictions: the preemptor was not bound.
    in_vain: int
    repeats: int

    @property
    def seconds_per_thousand(self) -> float:
        """CPU seconds of the session per thousand pods that came."""
        return self.session_cpu_seconds * 1000 / self.takers

    @property
    def evictions_per_card(self) -> float:
        """Evictions per reassigned card."""
        return self.evictions / self.cards if self.cards else 0.0

    @property
    def freed_per_card(self) -> float:
        """Cards of victims per reassigned card."""
        return self.cards_freed / self.cards if self.cards else 0.0


def measure_taking(name: str, size: str, nodes: int, pods: int, repeats: int) -> Taking:
    """Play a scene `repeats` times from scratch. Raises RuntimeError when a hook fails or it does not come to rest."""
    scene = make_scene(name, nodes, pods)
    samples = [_Play(scene).figures() for _ in range(repeats)]
    median = {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}
    return Taking(
        scene=name,
        size=size,
        nodes=nodes,
        pods=pods,
        takers=len(scene.takers),
        asked=sum(_cards(pod) for pod in scene.takers),
        session_seconds=median["session"],
        session_cpu_seconds=median["cpu"],
        action_cpu_seconds=median["action"],
        later_cpu_seconds=median["later"],
        tried=int(median["tried"]),
        victims=int(median["victims"]),
        groups_hit=int(median["groups"]),
        evictions=int(median["evictions"]),
        bound=int(median["bound"]),
        cards=median["cards"],
        cards_freed=median["freed"],
        in_vain=int(median["in vain"]),
        repeats=repeats,
    )


def core_for(scene: Scene) -> Core:
    """A core with the scene's scheduler-conf that has taken in the full cluster. Timings are CPU time."""
    core = core_with(scene.conf, f"scheduler-conf of {scene.name}", timer=process_time)
    for delta in scene.standing():
        core.apply(delta)
    _checked(core.step((), NOW - 1))
    return core


def _checked(result: StepResult) -> StepResult:
    if result.report.errors:
        raise RuntimeError(f"a hook failed: {result.report.errors[0]}")
    return result


def _cards(pod: PodObject) -> float:
    asked = pod.spec.containers[0].resources
    limits = (asked.limits if asked is not None else None) or {}
    return sum(int(amount) / _PER_CARD[name] for name, amount in limits.items())


class _Play:
    """One run of a scene: the session, then victims that leave, groups that make them anew, and pods that are bound."""

    def __init__(self, scene: Scene) -> None:
        self._core = core_for(scene)
        self._scene = scene
        self._pods = {pod.metadata.uid: pod for pod in (*scene.running, *scene.takers)}
        self._evictions: list[Evict] = []
        self._bound: dict[str, Bind] = {}
        self._victims: list[PodObject] = []

    def figures(self) -> dict[str, float]:
        """Everything of a `Taking` that is measured."""
        core = self._core
        for delta in self._scene.arriving():
            core.apply(delta)
        settle_memory()
        start, start_cpu = perf_counter(), process_time()
        result = _checked(core.step((), NOW))
        seconds, cpu_seconds = perf_counter() - start, process_time() - start_cpu
        tried = result.report.evictions_tried
        news = self._take_note(result)
        victims = len(self._evictions)
        later = self._until_rest(news)
        takers = {f"default/{pod.metadata.name}": pod for pod in self._scene.takers}
        bound = [pod for pod in self._scene.takers if pod.metadata.uid in self._bound]
        served = {f"default/{pod.metadata.name}" for pod in bound}
        return {
            "session": seconds,
            "cpu": cpu_seconds,
            "action": sum(t.seconds for t in result.report.timings if t.name in _ACTIONS),
            "later": later,
            "tried": tried,
            "victims": victims,
            "groups": len({_group(self._pods[intent.uid]) for intent in self._evictions[:victims]}),
            "evictions": len(self._evictions),
            "bound": len(bound),
            "cards": sum(_cards(pod) for pod in bound),
            "freed": sum(_cards(self._pods[intent.uid]) for intent in self._evictions),
            "in vain": sum(intent.by not in served or intent.by not in takers for intent in self._evictions),
        }

    def _until_rest(self, news: list[Delta]) -> float:
        """Sessions until nothing happens any more. Returns the CPU seconds of the longest."""
        longest = 0.0
        for number in range(1, _MOST_SESSIONS):
            leaving, self._victims = self._victims, []
            start = process_time()
            result = _checked(self._core.step(news, NOW + 10 * number))
            longest = max(longest, process_time() - start)
            if not leaving and not news:
                return longest
            news = [ObjectGone("Pod", "default", pod.metadata.name) for pod in leaving]
            news += self._take_note(result)
        raise RuntimeError(f"{self._scene.name} does not come to rest in {_MOST_SESSIONS} sessions")

    def _take_note(self, result: StepResult) -> list[Delta]:
        """Deltas that follow from the intents: victims terminate and are recreated, bound pods run."""
        news: list[Delta] = []
        replace = msgspec.structs.replace
        for intent in result.intents:
            if isinstance(intent, Evict):
                self._evictions.append(intent)
                pod = self._pods[intent.uid]
                self._victims.append(pod)
                ending = replace(pod.metadata, deletion_timestamp="2025-10-10T12:00:00Z")
                news.append(ObjectChanged(replace(pod, metadata=ending)))
                name = f"{pod.metadata.name}r"
                anew = replace(pod.metadata, name=name, uid=f"pod-uid-{name}")
                spec = replace(pod.spec, node_name=None)
                fresh = replace(pod, metadata=anew, spec=spec, status=replace(pod.status, phase="Pending"))
                self._pods[fresh.metadata.uid] = fresh
                news.append(ObjectChanged(fresh))
            elif isinstance(intent, Bind):
                self._bound[intent.uid] = intent
                pod = self._pods[intent.uid]
                notes = {**(pod.metadata.annotations or {}), **intent.annotations}
                running = replace(
                    pod,
                    metadata=replace(pod.metadata, annotations=notes),
                    spec=replace(pod.spec, node_name=intent.node),
                    status=replace(pod.status, phase="Running"),
                )
                self._pods[intent.uid] = running
                news.append(ObjectChanged(running))
        return news


def _group(pod: PodObject) -> str:
    return (pod.metadata.annotations or {})["scheduling.k8s.io/group-name"]


__all__ = ["SCENES", "Taking", "core_for", "measure_taking"]
