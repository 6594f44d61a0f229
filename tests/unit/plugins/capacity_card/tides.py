"""A small language for tides: running jobs, pending jobs, and expected victims. For the tests of vectors.

    a:T4         job a, training, one pod of 4 cards, priority 20000, in queue qt, running on n1
    g:T2x4#n1,n2 job g, training, two pods of 4, both of them its minimum, on n1 and on n2
    e:T4x2m2     four pods of 2, of which two are the minimum
    b:T4@40000   another priority
    i:I4         inference, priority 80000, running in queue qj, which is reclaimable: only its type protects it
    r:I4         the pending one, in queue qi

Later ones are newer. `U` is a job without a service type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

H200 = "NVIDIA-H200"
SERVICE = "volcano.sh/service.type"
OWNERS = {"ReplicaSet": "inference", "Deployment": "inference", "Job": "training"}
#: The scheduler-conf of the seed, with places for what a test changes.
CONF = """
actions: "{actions}"
tiers:
- plugins:
  - name: priority
  - {{name: gang, enableReclaimable: {gang}}}
  - {{name: conformance, enableReclaimable: {conformance}}}
- plugins:
  - name: predicates
  - {{name: capacity-card, arguments: {arguments}{switches}}}
  - name: nodeorder
"""
_ITEM = re.compile(
    r"(?P<name>\w+):(?P<type>[TIU])(?:(?P<pods>\d+)x)?(?P<cards>\d+)(?:m(?P<minimum>\d+))?"
    r"(?:@(?P<priority>\d+))?(?:#(?P<nodes>[\w,]+))?"
)
_TYPES = {"T": "training", "I": "inference", "U": None}


class StepOutcome(NamedTuple):
    """The outcome of one step."""

    #: Pods evicted, in order; a pod of a one-pod job goes by the name of its job.
    victims: list[str]
    #: The causes of `ReclaimFailed` on the reclaimer, None without such an event.
    failed: str | None
    #: Reasons of all events on the reclaimer's pods.
    reasons: set[str]


class Tides(Harness):
    """A harness with the seed's conf, and the language above."""

    def __init__(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        actions: str = "enqueue, allocate, backfill, reclaim",
        gang: bool = False,
        conformance: bool = False,
        switches: str = "",
        quotas: Mapping[str, int] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        """`quotas`: cards of qi; `training`: fields of queue qt; `switches`: of capacity-card, `, key: value`."""
        merged = {"cardUnlimitedCpuMemory": True, "podOwnerReferenceToServiceType": OWNERS, **(arguments or {})}
        conf = CONF.format(
            actions=actions,
            gang=str(gang).lower(),
            conformance=str(conformance).lower(),
            arguments=json.dumps(merged),
            switches=switches,
        )
        super().__init__(conf)
        every = {H200: 16, "H100": 16, f"{H200}/mig-1g.18gb-mixed": 16, f"{H200}/mps-140g*1/4": 16}
        self.every = every
        for value in (20000, 40000, 60000, 80000):
            self.priority_class(f"pc-{value}", value)
        self.queue("qi", cards=every if quotas is None else quotas, priority=80000, reclaimable=False)
        self.queue("qj", cards=every, priority=80000, reclaimable=True)
        self.queue("qt", cards=every, **{"priority": 20000, "reclaimable": True, **(training or {})})

    def scene(self, text: str, **pods: Mapping[str, Any]) -> None:
        """Jobs and their pods. `pods`: what is special about the pods of a job (`queue`: about the job)."""
        for item in text.split():
            found = _ITEM.fullmatch(item)
            assert found, item
            name = found["name"]
            self._job(found, dict(pods.get(name, {})))

    def _job(self, found: re.Match[str], special: dict[str, Any]) -> None:
        name, kind = found["name"], found["type"]
        waits = name.startswith("r")
        count = int(found["pods"] or 1)
        priority = int(found["priority"] or (80000 if waits or kind == "I" else 20000))
        queue = special.pop("queue", "qi" if waits else "qj" if kind == "I" else "qt")
        service = _TYPES[kind]
        notes = {SERVICE: service} if service else {}
        namespace = special.get("namespace", "default")
        self.group(
            name,
            queue=queue,
            min_member=int(found["minimum"] or count),
            phase=special.pop("phase_of_group", "Inqueue" if waits else "Running"),
            annotations={**notes, **special.pop("notes", {})},
            priority_class=f"pc-{priority}",
            namespace=namespace,
        )
        nodes = (found["nodes"] or "n1").split(",")
        self._created += 1  # members of a job are of one age
        age = self._created
        each = special.pop("each", [{}] * count)
        for index in range(count):
            own = {"card": H200, "cards": int(found["cards"]), "priority": priority, **special, **each[index]}
            if not waits:
                own.setdefault("node", nodes[index % len(nodes)])
            self._births.setdefault(f"{namespace}-{name}-w-{index}-uid", age)
            self.pod(f"{name}-w-{index}", group=name, **own)

    def outcome(self) -> StepOutcome:
        """One step."""
        intents = self.step().intents
        about = [event for event in self.events if event.object.kind == "Pod" and event.object.name.startswith("r")]
        failed = [event.message for event in about if event.reason == "ReclaimFailed"]
        causes = None
        if failed:
            _, found, causes = failed[0].partition("nodes can be reclaimed")
            assert found, failed[0]
        evicted = [intent.name for intent in intents if isinstance(intent, Evict)]
        return StepOutcome(
            self._shown(evicted), causes and causes.removeprefix(": "), {event.reason for event in about}
        )

    def _shown(self, pods: Iterable[str]) -> list[str]:
        shown = []
        for pod in pods:
            name, _, index = pod.rpartition("-w-")
            namespace = next(key for key in self._pods if key.endswith(f"/{pod}")).partition("/")[0]
            shown.append(name if len(self.job(name, namespace=namespace).tasks) == 1 else f"{name}-{index}")
        return shown

    def gone(self, *pods: str) -> None:
        """Evicted pods have ended."""
        for pod in pods:
            self.delete_pod(pod)
