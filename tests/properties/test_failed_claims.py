"""Sessions that skip pods with ResourceClaims whose devices are in use decide as sessions that attempt every pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.intents import Bind, Evict, ReleaseClaims
from capcard_sched.model.objects import PodObject
from capcard_sched.testing import Harness
from tests.unit.devices.pools import decode

_Json = dict[str, Any]


def _exactly(kind: str = "", **more: Any) -> _Json:
    selectors = [{"cel": {"expression": f'device.attributes["gpu.nvidia.com"].kind == "{kind}"'}}] if kind else []
    return {"deviceClassName": "c", "selectors": selectors} | more


def _request(kind: str = "", **more: Any) -> _Json:
    return {"requests": [{"name": "r", "exactly": _exactly(kind, **more)}]}


_FAILING: Final = [{"cel": {"expression": 'device.attributes["gpu.nvidia.com"].rare == "x"'}}]
_SAME: Final = [{"matchAttribute": "gpu.nvidia.com/numa"}]
#: `spec.devices` of claims: for one device, two, a pair, alternatives, two requests, all devices, a failing selector.
_WANTED: Final[list[_Json]] = [
    _request("a"),
    _request("b"),
    _request(),
    _request("a", count=2),
    {**_request(count=2), "constraints": _SAME},
    {
        "requests": [
            {
                "name": "r",
                "firstAvailable": [{"name": "s", **_exactly("a", count=2)}, {"name": "t", **_exactly("b")}],
            }
        ]
    },
    {"requests": [{"name": "r", "exactly": _exactly("a")}, {"name": "q", "exactly": _exactly("b")}]},
    _request("a", allocationMode="All"),
    {"requests": [{"name": "r", "exactly": _exactly("a", selectors=_FAILING)}]},
]


class Gang(NamedTuple):
    queue: str
    minimum: int
    #: By pod: the number of what its own claim wants; -1 for the claim that many pods share, -2 for none.
    pods: tuple[int, ...]
    cpu: int
    high: bool = False


class _Event(NamedTuple):
    """Something that happens between two steps, to the n-th of what there is."""

    what: str
    which: int
    more: int = 0


class World(NamedTuple):
    #: By node: CPUs, and kind and NUMA node of its devices.
    nodes: list[tuple[int, list[tuple[str, int]]]]
    gangs: list[Gang]
    turns: list[tuple[list[_Event], int]]
    #: The first devices that other schedulers' pods hold at the start.
    held: int


_kinds = st.sampled_from([0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, -1, -2])
_gangs = st.builds(
    lambda queue, pods, is_whole, cpu, high: Gang(queue, len(pods) if is_whole else 1, pods, cpu, high),
    st.sampled_from(["q", "r"]),
    st.one_of(
        st.builds(lambda kind, count: (kind,) * count, _kinds, st.integers(1, 3)),
        st.lists(_kinds, min_size=1, max_size=3).map(tuple),
    ),
    st.booleans(),
    st.integers(1, 2),
    st.booleans(),
)
_WHAT: Final = (
    *("end", "end", "end", "finish", "release", "delete pod", "add gang", "foreign", "foreign ends", "foreign ends"),
    *("renew claim", "delete claim", "take claim", "cordon", "slice", "class", "quota", "terminate"),
)
_worlds = st.builds(
    World,
    nodes=st.lists(
        st.tuples(
            st.sampled_from([3, 20, 20]),
            st.lists(st.tuples(st.sampled_from("aab"), st.integers(0, 1)), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=2,
    ),
    gangs=st.lists(_gangs, min_size=4, max_size=7),
    turns=st.lists(
        st.tuples(
            st.lists(
                st.builds(_Event, st.sampled_from(_WHAT), st.integers(0, 30), st.integers(0, 30)),
                min_size=1,
                max_size=2,
            ),
            st.sampled_from([1, 1, 1, 100, 301]),
        ),
        min_size=3,
        max_size=8,
    ),
    held=st.integers(0, 4),
)


class Claimants:
    """A harness, and the objects that it has."""

    def __init__(self, conf: str, world: World) -> None:
        self.h = Harness(conf)
        self.world = world
        self._more = iter([*world.gangs, *world.gangs])
        self.claims: dict[str, _Json] = {}
        self.pods: dict[str, _Json] = {}
        self.devices: dict[str, list[tuple[str, int]]] = {}
        self.cordoned: set[str] = set()
        self._groups = self._foreign = self._generation = 0
        self.h.priority_class("high", 100)
        self.device_class("")
        for number, (_, devices) in enumerate(world.nodes):
            self.devices[f"n{number}"] = list(devices)
            self._node(f"n{number}")
            self.slice(f"n{number}")
        for name in ("q", "r"):
            self._queue(name, 9)
        self.claim("shared", 2)
        places = [(name, number) for name, devices in self.devices.items() for number in range(len(devices))]
        for node, device in places[: world.held]:
            self._take(node, device)
        for gang in world.gangs:
            self.add_gang(gang)

    # --- objects -----------------------------------------------------------------------------------------------------

    def device_class(self, kind: str) -> None:
        text = "true" if not kind else f'device.attributes["gpu.nvidia.com"].kind == "{kind}"'
        spec = {"selectors": [{"cel": {"expression": text}}]}
        self.h.apply(ObjectChanged(decode({"metadata": {"name": "c"}, "spec": spec}, DeviceClassObject)))

    def _node(self, name: str) -> None:
        self.h.node(name, cpu=str(self.world.nodes[int(name[1:])][0]), unschedulable=name in self.cordoned)

    def slice(self, name: str) -> None:
        self._generation += 1
        devices = [
            {
                "name": f"g{number}",
                "attributes": {
                    "kind": {"string": kind},
                    "numa": {"int": numa},
                    "productName": {"string": kind},
                    "type": {"string": "gpu"},
                },
            }
            for number, (kind, numa) in enumerate(self.devices[name])
        ]
        pool = {"name": name, "generation": self._generation, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": devices}
        self.h.apply(ObjectChanged(decode({"metadata": {"name": name}, "spec": spec}, ResourceSliceObject)))

    def _queue(self, name: str, devices: int) -> None:
        limits = {"cpu": "1000", "memory": "1000Gi"}
        self.h.queue(name, cards={"a": devices, "b": devices}, capability=limits)

    def claim(self, name: str, wanted: int, pod: str = "", uid: str = "") -> None:
        owners = [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": True}] if pod else []
        meta = {"name": name, "namespace": "default", "uid": uid or name, "ownerReferences": owners}
        self.claims[name] = {"metadata": meta, "spec": {"devices": _WANTED[wanted]}, "status": {}}
        self._write_claim(name)

    def _write_claim(self, name: str) -> None:
        self.h.apply(ObjectChanged(decode(self.claims[name], ResourceClaimObject)))

    def _write_pod(self, name: str) -> None:
        self.h.apply(ObjectChanged(msgspec.convert(self.pods[name], PodObject)))

    def add_gang(self, gang: Gang) -> None:
        group = f"j{self._groups}"
        self._groups += 1
        of_class = "high" if gang.high else ""
        self.h.group(group, queue=gang.queue, min_member=gang.minimum, phase="Pending", priority_class=of_class)
        for number, kind in enumerate(gang.pods):
            name = f"{group}-{number}"
            entry: _Json = {"name": "x", "resourceClaimTemplateName": "t"}
            statuses = [{"name": "x", "resourceClaimName": f"{name}-x"}]
            if kind == -1:
                entry, statuses = {"name": "x", "resourceClaimName": "shared"}, []
            self.pods[name] = {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": name,
                    "creationTimestamp": f"2026-01-01T00:00:{self._groups:02}Z",
                    "annotations": {"scheduling.k8s.io/group-name": group},
                },
                "spec": {
                    "schedulerName": "capcard-sched",
                    "resourceClaims": [] if kind == -2 else [entry],
                    "priority": 100 if gang.high else 0,
                    "containers": [{"name": "main", "resources": {"requests": {"cpu": str(gang.cpu)}}}],
                },
                "status": {"phase": "Pending", "resourceClaimStatuses": [] if kind == -2 else statuses},
            }
            if kind >= 0:
                self.claim(f"{name}-x", kind, name)
            self._write_pod(name)

    # --- events ------------------------------------------------------------------------------------------------------

    def happen(self, event: _Event) -> None:
        """One event, if there is anything for it to happen to."""
        do: Callable[[int, int], None] = getattr(self, "_" + event.what.replace(" ", "_") + "_event")
        do(event.which, event.more)

    def _pick(self, names: list[str], which: int) -> str:
        return names[which % len(names)] if names else ""

    def _finish_event(self, which: int, more: int) -> None:
        if name := self._pick([name for name, pod in self.pods.items() if "nodeName" in pod["spec"]], which):
            self.pods[name]["status"] |= {"phase": ("Succeeded", "Failed")[more % 2]}
            self._write_pod(name)

    def _release_event(self, which: int, more: int) -> None:
        """As the controller of claims: pods that ended are reserved no more, their claims have no devices."""
        ended = {name for name, pod in self.pods.items() if pod["status"]["phase"] in ("Succeeded", "Failed")}
        for name, claim in list(self.claims.items()):
            users = [each["uid"] for each in claim["status"].get("reservedFor", ())]
            left = [uid for uid in users if uid in self.pods and uid not in ended]
            if users != left:
                claim["status"]["reservedFor"] = [{"resource": "pods", "name": uid, "uid": uid} for uid in left]
                if not left:
                    claim["status"] = {}
                self._write_claim(name)

    def _end_event(self, which: int, more: int) -> None:
        self._finish_event(which, more)
        self._release_event(which, more)

    def _delete_pod_event(self, which: int, more: int) -> None:
        if name := self._pick(sorted(self.pods), which):
            del self.pods[name]
            self.h.apply(ObjectGone("Pod", "default", name))
            if more % 2:
                self.drop_claim(f"{name}-x")

    def drop_claim(self, name: str) -> None:
        if self.claims.pop(name, None) is not None:
            self.h.apply(ObjectGone("ResourceClaim", "default", name))

    def _add_gang_event(self, which: int, more: int) -> None:
        if (gang := next(self._more, None)) is not None:
            self.add_gang(gang)

    def allocate(self, name: str, node: str, device: int, consumers: list[str]) -> None:
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        self.claims[name]["status"] = {
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in consumers],
            "allocation": {
                "devices": {
                    "results": [{"request": "r", "driver": "gpu.nvidia.com", "pool": node, "device": f"g{device}"}]
                },
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
            },
        }
        self._write_claim(name)

    def _foreign_event(self, which: int, more: int) -> None:
        """The claim of another scheduler's pod gets a device."""
        self._take(self._pick(sorted(self.devices), which), more % 4)

    def _take(self, node: str, device: int) -> None:
        name = f"foreign{self._foreign}"
        self._foreign += 1
        self.claim(name, 2)
        self.allocate(name, node, device, ["someone"])

    def _foreign_ends_event(self, which: int, more: int) -> None:
        self.drop_claim(self._pick([name for name in self.claims if name.startswith("foreign")], which))

    def _unplaced(self) -> list[str]:
        """The claims of pods that wait."""
        waiting = [name for name, pod in self.pods.items() if "nodeName" not in pod["spec"]]
        return [f"{name}-x" for name in waiting if f"{name}-x" in self.claims]

    def _renew_claim_event(self, which: int, more: int) -> None:
        """The claim of a waiting pod is another one with other wishes."""
        if name := self._pick(self._unplaced(), which):
            self.claim(name, more % len(_WANTED), name.removesuffix("-x"), uid=f"{name}-{more}")

    def _delete_claim_event(self, which: int, more: int) -> None:
        if name := self._pick(self._unplaced(), which):
            if more % 2:
                self.claims[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self._write_claim(name)
            else:
                self.drop_claim(name)

    def _take_claim_event(self, which: int, more: int) -> None:
        """The claim of a waiting pod, or the shared one, has a device already."""
        name = self._pick([*self._unplaced(), "shared"], which)
        self.allocate(name, self._pick(sorted(self.devices), more), more % 3, [])

    def _cordon_event(self, which: int, more: int) -> None:
        name = self._pick(sorted(self.devices), which)
        self.cordoned ^= {name}
        self._node(name)

    def _slice_event(self, which: int, more: int) -> None:
        name = self._pick(sorted(self.devices), which)
        if more % 3 == 0 and self.devices[name]:
            self.devices[name].pop()
        else:
            self.devices[name].append(("aab"[more % 3], more % 2))
        self.slice(name)

    def _class_event(self, which: int, more: int) -> None:
        self.device_class(["", "", "a", "b"][which % 4])

    def _quota_event(self, which: int, more: int) -> None:
        self._queue(["q", "r"][which % 2], more % 6)

    def _terminate_event(self, which: int, more: int) -> None:
        """A pod begins to terminate."""
        if name := self._pick([name for name, pod in self.pods.items() if "nodeName" in pod["spec"]], which):
            self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self._write_pod(name)

    # --- steps -------------------------------------------------------------------------------------------------------

    def step(self, seconds: int, *, late: bool) -> tuple[list[Any], dict[str, str]]:
        """The decisions and the phases. `late`: the API shows the allocations of this step's claims much later."""
        result = self.h.step(self.h.now + seconds)
        assert not result.report.errors, result.report.errors
        decisions = [intent for intent in result.intents if isinstance(intent, (Bind, Evict, ReleaseClaims))]
        for intent in decisions:
            if isinstance(intent, Bind):
                self._bound(intent, late=late)
            elif isinstance(intent, Evict):
                self.pods[intent.name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self._write_pod(intent.name)
        phases = {key: job.phase.value for key, job in self.h.state.jobs.items()}
        return decisions, phases

    def _bound(self, bind: Bind, *, late: bool) -> None:
        for each in bind.claims or ():
            status = self.claims[each.claim]["status"]
            if each.allocation is not None:
                status["allocation"] = msgspec.to_builtins(each.allocation)
            status.setdefault("reservedFor", []).append({"resource": "pods", "name": bind.name, "uid": bind.uid})
            if not late:
                self._write_claim(each.claim)
        self.pods[bind.name]["spec"]["nodeName"] = bind.node
        self.pods[bind.name]["status"]["phase"] = "Running"
        self._write_pod(bind.name)


_ACTIONS: Final = "enqueue, allocate, backfill"


def _conf(actions: str, *plugins: str) -> str:
    return f'actions: "{actions}"\ntiers: [{{plugins: [{", ".join(f"{{name: {name}}}" for name in plugins)}]}}]'


CONFS: Final = {
    "plain": _conf(_ACTIONS, "priority", "gang", "predicates", "nodeorder", "binpack"),
    "cards": _conf(_ACTIONS, "priority", "gang", "drf", "predicates", "capacity-card", "nodeorder"),
    "evicting": _conf(f"{_ACTIONS}, preempt, reclaim", "priority", "gang", "predicates", "capacity-card"),
}


def _attempt_everything(h: Harness) -> None:
    failed = h.core.snapshot().failed_attempts
    failed.add = lambda *_: None  # type: ignore[method-assign]
    failed.add_refused = lambda *_: None  # type: ignore[method-assign]
    failed.is_hopeless = lambda *_: False  # type: ignore[method-assign]


@pytest.mark.parametrize("conf", sorted(CONFS))
@given(world=_worlds)
@settings(max_examples=settings().max_examples, deadline=None)
def test_skipped_pods_with_claims_change_no_decision(conf: str, world: World) -> None:
    skipping, full = Claimants(CONFS[conf], world), Claimants(CONFS[conf], world)
    _attempt_everything(full.h)
    for events, seconds in ([], 1), *world.turns, ([], 1):
        for event in events:
            skipping.happen(event)
            full.happen(event)
        late = seconds == 1 and len(events) == 1
        for waited in (seconds, 1, 1):
            found, expected = skipping.step(waited, late=late), full.step(waited, late=late)
            assert found == expected
            late = False
