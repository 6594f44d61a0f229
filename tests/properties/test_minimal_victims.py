"""Victims of gangs on small random clusters, compared with an enumeration of all smaller sets of victims.

The enumeration shares no code with the product: it knows amounts, minimums and subgroups.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

CONF = """
actions: "enqueue, allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""


class Policy(NamedTuple):
    """Pods of one index, by their value of label `id`."""

    size: int
    minimum: int


class Pod(NamedTuple):
    """`policy` -1 for the rest; `at`: index of its node, -1 for a pending pod."""

    policy: int
    id: int
    cpu: int
    role: str = ""
    at: int = -1


class Gang(NamedTuple):
    policies: tuple[Policy, ...]
    minimum: int
    #: Minimum of the role `head`.
    heads: int
    pods: tuple[Pod, ...]


class Scene(NamedTuple):
    """The last gang has no node, and preempts the others."""

    idle: tuple[int, ...]
    gangs: tuple[Gang, ...]


_POLICIES = st.lists(st.builds(Policy, st.integers(1, 3), st.integers(0, 2)), max_size=2).map(tuple)


@st.composite
def gangs(draw: st.DrawFn, nodes: int, *, is_bound: bool, is_mixed: bool) -> Gang:
    """A gang; `is_bound`: with its minimum met, on nodes; `is_mixed`: pods have several requests, or it has one pod."""
    policies = draw(_POLICIES)
    own = draw(st.integers(1, 2))
    pod = st.builds(
        Pod,
        st.integers(-1, len(policies) - 1),
        st.integers(0, 1),
        st.integers(1, 2) if is_bound and is_mixed else st.just(own),
        st.sampled_from(["", "", "head"]),
        st.integers(0, nodes - 1) if is_bound else st.just(-1),
    )
    most = 4 if is_bound else 1 if is_mixed else 6
    pods = tuple(draw(st.lists(pod, min_size=1, max_size=most)))
    heads = draw(st.integers(0, 1))
    found = Gang(policies, max(heads, draw(st.integers(1, len(pods)))), heads, pods)
    if not is_bound or holds(found, pods):
        return found
    return Gang((), 1, 0, tuple(pod._replace(policy=-1) for pod in pods))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """At most 3 nodes and 3 victim gangs of 4 pods. Where these have several requests, one pod preempts."""
    nodes = draw(st.integers(1, 3))
    idle = tuple(draw(st.lists(st.sampled_from([0, 0, 1]), min_size=nodes, max_size=nodes)))
    is_mixed = draw(st.booleans())
    victims = [draw(gangs(nodes, is_bound=True, is_mixed=is_mixed)) for _ in range(draw(st.integers(1, 3)))]
    return Scene(idle, (*victims, draw(gangs(nodes, is_bound=False, is_mixed=is_mixed))))


def by_subgroup(pods: Collection[Pod]) -> Counter[tuple[int, int]]:
    return Counter((pod.policy, pod.id) for pod in pods if pod.policy >= 0)


def holds(gang: Gang, pods: Collection[Pod]) -> bool:
    """Whether pods are a legal state of a gang: every minimum met, no subgroup below its size."""
    members = by_subgroup(pods)
    ready = Counter(policy for (policy, _), count in members.items() if count >= gang.policies[policy].size)
    return (
        len(pods) >= gang.minimum
        and sum(pod.role == "head" for pod in pods) >= gang.heads
        and all(ready[index] >= policy.minimum for index, policy in enumerate(gang.policies))
        and all(count >= gang.policies[policy].size for (policy, _), count in members.items())
    )


def subsets(pods: tuple[Pod, ...]) -> Iterator[tuple[int, ...]]:
    for count in range(len(pods) + 1):
        yield from combinations(range(len(pods)), count)


@cache
def legal_losses(gang: Gang) -> list[tuple[int, ...]]:
    """The sets of pods, by position, that a gang may lose: it keeps its minimums, or loses all pods."""
    every = tuple(range(len(gang.pods)))
    return [
        lost
        for lost in subsets(gang.pods)
        if lost == every or holds(gang, [gang.pods[at] for at in every if at not in lost])
    ]


@cache
def starts(gang: Gang) -> list[tuple[int, ...]]:
    """The requests of the sets of pods that start a gang, the largest request first."""
    found = {
        tuple(sorted((gang.pods[at].cpu for at in chosen), reverse=True))
        for chosen in subsets(gang.pods)
        if chosen and holds(gang, [gang.pods[at] for at in chosen])
    }
    return sorted(found, key=len)


@cache
def fits(requests: tuple[int, ...], free: tuple[int, ...]) -> bool:
    if not requests:
        return True
    return any(
        requests[0] <= amount and fits(requests[1:], (*free[:node], amount - requests[0], *free[node + 1 :]))
        for node, amount in enumerate(free)
    )


def smaller_sets(scene: Scene, victims: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]] | None:
    """A legal part of the victims, by gang and position, without which the preemptor starts; None without one."""
    choices: list[frozenset[tuple[int, int]]] = [frozenset()]
    for number, gang in enumerate(scene.gangs[:-1]):
        own = [frozenset((number, at) for at in lost) for lost in legal_losses(gang)]
        choices = [one | more for one in choices for more in own if more <= victims]
    for found in sorted(choices, key=len):
        if len(found) >= len(victims):
            continue
        free = list(scene.idle)
        for number, at in found:
            pod = scene.gangs[number].pods[at]
            free[pod.at] += pod.cpu
        if any(fits(requests, tuple(sorted(free))) for requests in starts(scene.gangs[-1])):
            return found
    return None


def build(scene: Scene) -> Harness:
    h = Harness(CONF, run=True)
    h.queue("q")
    for node, amount in enumerate(scene.idle):
        used = sum(pod.cpu for gang in scene.gangs for pod in gang.pods if pod.at == node)
        h.node(f"n{node}", cpu=str(amount + used))
    for number, gang in enumerate(scene.gangs):
        is_last = number == len(scene.gangs) - 1
        h.priority_class(f"c{number}", 100 if is_last else 1)
        policies = [
            {
                "name": f"policy{index}", "labelSelector": {"matchLabels": {"of": f"r{index}"}},
                "matchLabelKeys": ["id"], "subGroupSize": policy.size, "minSubGroups": policy.minimum,
            }
            for index, policy in enumerate(gang.policies)
        ]  # fmt: skip
        h.group(
            f"g{number}", min_member=gang.minimum, priority_class=f"c{number}", policies=policies,
            min_task_member={"head": gang.heads} if gang.heads else None, phase="Pending" if is_last else "Running",
        )  # fmt: skip
        for at, pod in enumerate(gang.pods):
            h.pod(
                f"p{number}-x-{at}", group=f"g{number}", role=pod.role, requests={"cpu": str(pod.cpu)},
                labels={"of": f"r{pod.policy}", "id": str(pod.id)}, node=f"n{pod.at}" if pod.at >= 0 else None,
            )  # fmt: skip
    return h


def victims_of(h: Harness) -> frozenset[tuple[int, int]]:
    """The evicted pods of the first session with evictions, by gang and position."""
    for _ in range(3):
        names = [intent.name for intent in h.step().intents if isinstance(intent, Evict)]
        if names:
            return frozenset((int(gang[1:]), int(at)) for gang, _, at in (name.split("-") for name in names))
    return frozenset()


@settings(max_examples=4 * settings().max_examples)
@given(scene=scenes())
def test_no_legal_part_of_the_victims_is_enough(scene: Scene) -> None:
    victims = victims_of(build(scene))
    assert smaller_sets(scene, victims) is None
