"""The cache comparer over random histories: memory and list agree at every moment."""

from __future__ import annotations

from typing import Literal

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capcard_sched.daemon.diagnosis.cache_comparer import compare, differences, rebuild
from capcard_sched.model import deltas
from capcard_sched.model.objects import PodGroupObject
from capcard_sched.model.status import TaskStatus
from tests.daemon.dump.listed import Listed
from tests.daemon.dump.test_cache_comparer import CARD, cluster, unexpected

_names = st.sampled_from(["a", "b", "c", "d", "e", "f"])
_groups = st.sampled_from(["g", "h"])
_echoes: st.SearchStrategy[Literal["shown", "late", "none"]] = st.sampled_from(["late", "none", "shown"])


class Histories(RuleBasedStateMachine):
    """Objects come, change and go and sessions run in between: memory and list agree at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.h = Listed()
        self.births = 0
        self.alive: dict[str, str] = {}

    @initialize()
    def start(self) -> None:
        self.h.queue("q", cards={CARD: 4})
        self.h.queue("default", cards={CARD: 2})
        for name in ("n1", "n2"):
            self.h.gpu_node(name, count=4, cpu="4")
        for name in ("g", "h"):
            self.h.group(name, queue="q", phase="Pending")

    @rule(name=st.sampled_from(["n1", "n2"]), cards=st.none() | st.integers(0, 4))
    def node(self, name: str, cards: int | None) -> None:
        if cards is None:
            self.h.delete_node(name)
        else:
            self.h.gpu_node(name, count=cards, cpu="4")

    @rule(name=_groups, members=st.integers(1, 3), queue=st.sampled_from(["q", "r", "default"]), roles=st.booleans())
    def group(self, name: str, members: int, queue: str, roles: bool) -> None:
        known = self.h.objects.get(("PodGroup", f"default/{name}"))
        phase = "Pending"
        if isinstance(known, deltas.ObjectChanged) and isinstance(known.object, PodGroupObject):
            phase = known.object.status.phase or phase
        minimums = {"worker": 1} if roles else None
        self.h.group(name, min_member=members, queue=queue, phase=phase, min_task_member=minimums)

    @rule(name=_groups)
    def drop_group(self, name: str) -> None:
        self.h.delete_group(name)

    @rule(queue=st.sampled_from(["q", "r"]), there=st.booleans())
    def queue(self, queue: str, there: bool) -> None:
        if not there:
            self.h.delete_queue(queue)
        elif ("Queue", f"/{queue}") not in self.h.objects:
            self.h.queue(queue, cards={CARD: 3})

    @rule(
        base=_names,
        group=st.sampled_from(["g", "h", "missing", None]),
        cards=st.integers(0, 2),
        role=st.sampled_from(["", "worker"]),
        ours=st.sampled_from([True, True, True, False]),
    )
    def pod(self, base: str, group: str | None, cards: int, role: str, *, ours: bool) -> None:
        if base in self.alive:
            return
        self.births += 1
        name = self.alive[base] = f"{base}{self.births}"
        card = f"{CARD}|NVIDIA-A100" if cards > 1 else CARD if cards else None
        scheduler, node = ("capcard-sched", None) if ours else ("other", "n1")
        self.h.pod(name, group=group, card=card, cards=cards, role=role, scheduler=scheduler, node=node)

    @precondition(lambda self: self.alive)
    @rule(base=_names, change=st.sampled_from(["Running", "Succeeded", "Failed", "terminates", "goes"]))
    def progress(self, base: str, change: str) -> None:
        name = self.alive.get(base)
        if name is None:
            return
        if change == "goes":
            self.h.delete_pod(self.alive.pop(base))
        elif change == "terminates":
            self.h.terminate(name)
        elif self.h._pods[f"default/{name}"]["spec"].get("nodeName"):
            self.h.set_phase(name, change)

    @rule(name=_groups, count=st.integers(1, 3), echo=_echoes)
    def gang(self, name: str, count: int, echo: Literal["shown", "late", "none"]) -> None:
        self.watch(echo)
        for base in "abcdef"[:count]:
            self.pod(base, name, 1, "worker", ours=True)
        self.h.step()
        self.h.step()

    @rule()
    def session(self) -> None:
        self.h.step()

    @rule(echo=_echoes)
    def watch(self, echo: Literal["shown", "late", "none"]) -> None:
        self.h.catch_up()
        self.h.echo = echo

    @precondition(lambda self: self.h.binds)
    @rule()
    def restart(self) -> None:
        """Bindings that have not arrived come to nothing."""
        self.h.catch_up()
        self.h.deliver()
        self.h.state.apply(deltas.Takeover())

    @invariant()
    def agree(self) -> None:
        self.h.deliver()
        found = compare(self.h.state, self.h.listing())
        assert unexpected(found) == []
        binding = {f"default/{t.name}" for t in self.h.state.tasks.values() if t.status is TaskStatus.BINDING}
        assert {item.name for item in found} == binding


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=20)


@given(seed=st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples // 4)
def test_the_order_of_the_list_does_not_matter(seed: object) -> None:
    h = cluster()
    listing = h.listing()
    seed.shuffle(listing)  # type: ignore[attr-defined]
    assert differences(h.state, rebuild(h.state, listing)) == []
