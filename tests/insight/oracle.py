"""An oracle of the answers of `explain`: a checker per class of sentence, without code of the diagnosis.

A checker removes what a sentence names and runs the changed cluster in the simulator, or sums the objects again. A
sentence is wrong when the cluster behaves otherwise. `CLASSES` has the sentences that the oracle reads; one that no
class matches is a finding, too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from capcard_sched.model.diagnosis import JobDiagnosis
from tests.insight.oracle_clusters import Cluster
from tests.insight.oracle_factors import (
    EVERY,
    QUOTA,
    Factor,
    chain,
    pod_specs,
    removal,
    without_plugins,
)
from tests.insight.oracle_figures import amount as number_of
from tests.insight.oracle_figures import wrong_figures
from tests.insight.oracle_fixes import wrong_fixes
from tests.insight.oracle_world import (
    GROUP,
    Edit,
    Json,
    Waiting,
    World,
    ended,
    notes,
    simulated,
)

#: Stages that a trial of the job alone contradicts when it starts.
_NEVER: Final = frozenset({"CannotStart"})
#: Stages for which no trial says anything: nothing but a change of the job or of its queue helps.
_HELD: Final = frozenset({"NotProcessed", "Suspended", "Unsupported", "Gated", "Incomplete", "NoPods"})
#: What controllers of others do: create pods and volumes, take off gates.
_COMES_LATER: Final = r"gang is not complete|has not provisioned its volume|is not bound to it yet|scheduling gate"
#: Stages of a job that starts without a change.
_COMING: Final = frozenset({"Schedulable", "VictimsTerminating", "BindBackoff", "NoPods", "NotTried"})
_CARD: Final = r"[\w./*-]+(?:(?:\|| or )NVIDIA[\w./*-]+)*"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_N: Final = r"(?:\d[\d.]*(?:[KMGT]i?|m)?)"


class Wrong(NamedTuple):
    """A wrong sentence."""

    #: Class of the sentence, and the kind of error.
    kind: str
    said: str
    right: str


class Case(NamedTuple):
    """One answer."""

    world: World
    job: Waiting
    found: JobDiagnosis
    text: str

    @property
    def sentences(self) -> list[str]:
        """The answer and its facts."""
        return [self.found.summary, *self.found.facts]


#: Part of a headline to the obstacle that it names. Groups: `queue`, `resource`. The first match counts.
CAUSES: Final[tuple[tuple[str, str], ...]] = (
    (r"scheduling gate", "gates"),
    (r"members? of the gang (is|are) scheduled by", "members"),
    (r"gang is not complete|[Nn]ot enough valid tasks", "members"),
    (r"is scheduled by ", "scheduler"),
    (r"ResourceQuota", "resourcequota"),
    (r"overcommit", "overcommit"),
    (r"FIFO queue", "fifo"),
    (r"[Qq]ueue (?P<queue>\S+) does not exist", "missing-queue"),
    (r"[Qq]ueue (?P<queue>\S+) is (Closed|Closing|closed|closing)", "state"),
    (r"defined in requests/limits for card|has not created any pods", "own"),
    (r"no node provides card", "card"),
    (r"needs? \S+ (?P<resource>\S+?)( each)?, and parent queue (?P<queue>\S+), of \S+, has \S+ for queue", "cluster"),
    ((r"needs? \S+ (?P<resource>\S+?)( each)?, and the (cluster has|share of the cluster that \w+ gives) (\S+ for )?"
     r"(all )?queues? ?(?P<queue>\S*)"), "cluster"),
    (r"(?P<amount>\S+) (?P<resource>\S+?), and the quota of queue (?P<queue>\S+) is", "queue"),
    (r"needs (?P<amount>\S+) (?P<resource>.+?), and (its (parent|ancestor) )?queue (?P<queue>\S+) has", "queue"),
    (r"queue (?P<queue>\S+) has no (card )?quota", "queue"),
    (r"insufficient .*: the limit of queue (?P<queue>\S+) is", "queue"),
    (r"queue (?P<queue>\S+) ha(s|ve) (no|too little) quota", "queue"),
    (r"[Qq]ueue (?P<queue>\S+) (has (no|too little) quota|is over its quota)", "queue"),
)  # fmt: skip

#: Parts of headlines about nodes. All matches count: together they exclude every node.
NODE_CAUSES: Final[tuple[tuple[str, str], ...]] = (
    (r"(?P<resource>\S+) free on one node", "node"),
    (r"needs? \S+ (?P<resource>\S+?), and (the largest node|\S+) has", "node"),
    (r"needs? \S+ (?P<resource>\S+?), and no node has any", "node"),
    (r"needs? \S+ (?P<resource>\S+?), and .+? have at most \S+", "node"),
    (r"needs? \S+ (?P<resource>.+?), and the (largest node|cluster) has", "node"),
    (r"No node has \S+ (?P<resource>.+?) free", "node"),
    (r"needs? \S+ (?P<resource>\S+?), and its nodes have space for", "node"),
    (r"pods with (?P<resource>\S+?), and the nodes have space for", "node"),
    (r"taint|cordoned|unreachable|not ready", "taints"),
    (r"node selector|node affinity", "selector"),
    (r"anti-affinity|pod affinity|topology spread", "affinity"),
    (r"host port|free ports", "ports"),
    (r"PersistentVolume|persistentvolumeclaim|volume", "volumes"),
    (r"(didn't|do(es)? not) have card", "card"),
    (r"card quota of queue (?P<queue>\S+?)[,;:]|without quota left in queue (?P<of>\S+)", "queue"),
    (r"maximum number of pods|Too many pods", "node pods"),
    (r"hami-vgpu|vgpu|shared cards?\b", "node volcano.sh/vgpu-number"),
    (r"other cards? .* quota", "queues"),
)


def _node(resource: str) -> list[Factor]:
    if " or " in resource:
        return [factor for one in resource.split(" or ") for factor in _node(one)]
    if "/" in resource and not resource.startswith("NVIDIA"):
        return [f"node {resource}", "devices"] if resource.startswith(("nvidia", "volcano")) else [f"node {resource}"]
    if resource in {"cpu", "memory", "pods", "ephemeral-storage"}:
        return [f"node {resource}"]
    return ["node pods"] if resource == "pod" else ["devices"]


def causes_of(text: str, case: Case) -> list[Factor]:
    """The obstacles that a headline names; any of them may be the cause."""
    for pattern, kind in CAUSES:
        match = re.search(pattern, text)
        if match is None:
            continue
        named = match.groupdict()
        queue = (named.get("queue") or "").rstrip(",.;:")
        if kind in {"queue", "missing-queue"}:
            return [f"{kind} {queue}"]
        if kind == "cluster":
            return ["share", "guarantees", "overcommit", f"queue {queue}", *_node(named["resource"])]
        return ["members", "scheduler"] if kind == "members" else [kind]
    found: list[Factor] = []
    for pattern, kind in NODE_CAUSES:
        for match in re.finditer(pattern, text):
            named = match.groupdict()
            if kind == "node":
                found += _node(named["resource"])
            else:
                found.append(f"queue {(named['queue'] or named['of']).rstrip(',.;:')}" if kind == "queue" else kind)
    return list(dict.fromkeys(found))


# --- trials -----------------------------------------------------------------------------------------------------------


def _apply(case: Case, factors: list[Factor]) -> World:
    found = [removal(factor, case.world, case.job) for factor in factors]
    conf = case.world.conf
    for one in found:
        conf = without_plugins(conf, one.plugins)
    alone = [_alone(case)] if case.found.stage in _NEVER else []  # the sentence is about a cluster without other jobs
    return case.world.after(*(one.edit for one in found), *alone, conf=conf)


def _started(case: Case, world: World) -> bool:
    return world.running(case.job) >= case.job.goal


def _admitted(case: Case, world: World) -> bool:
    group = world.get("PodGroup", case.job.group)
    return group is not None and (group.get("status") or {}).get("phase") not in {None, "", "Pending"}


def _alone(case: Case) -> Edit:
    """Every other job ended."""
    job = case.job
    kind, _, name = job.name.partition("/")

    def is_own(obj: Json) -> bool:
        meta = obj["metadata"]
        if obj["kind"] == "Pod":
            return notes(obj).get(GROUP) == job.group and not (ended(obj) or "deletionTimestamp" in meta)
        if obj["kind"] == "PodGroup":
            return bool(meta["name"] == job.group)
        if obj["kind"] == "ReplicaSet":
            return kind == "deployment" and any(one["name"] == name for one in meta["ownerReferences"])
        return obj["kind"].lower() == kind and bool(meta["name"] == name)

    def edit(objects: list[Json]) -> None:
        jobs = {"Pod", "PodGroup", "ReplicaSet", "Deployment", "Job", "StatefulSet"}
        objects[:] = [obj for obj in objects if obj["kind"] not in jobs or is_own(obj)]
        for obj in objects:
            if obj["kind"] == "ResourceQuota":
                status = obj.get("status") or {}
                status["used"] = dict.fromkeys(status.get("used") or {}, "0")

    return edit


def _selects_pods(case: Case) -> bool:
    """Whether pods of the job have an affinity to pods, which may be those of others."""
    return any((spec.get("affinity") or {}).get("podAffinity") for spec in pod_specs(case.world.objects, case.job))


def _wanted_labels(case: Case) -> list[dict[str, str]]:
    """The labels of pods that required affinities of the job select."""
    return [
        term["labelSelector"]["matchLabels"]
        for spec in pod_specs(case.world.objects, case.job)
        for term in ((spec.get("affinity") or {}).get("podAffinity") or {}).get(_REQUIRED) or ()
    ]


def _affine_groups(case: Case) -> set[str]:
    """The PodGroups with pods that a required affinity of the job selects."""
    wanted = _wanted_labels(case)
    return {
        notes(pod).get(GROUP, "")
        for pod in case.world.of("Pod")
        if any(labels.items() <= (pod["metadata"].get("labels") or {}).items() for labels in wanted)
    }


def _affine_jobs_wait(case: Case) -> bool:
    """Whether pods that a required affinity of the job selects are still to be created, by a Job that waits."""
    wanted = _wanted_labels(case)
    templates = [task["template"] for job in case.world.of("Job") for task in job["spec"].get("tasks") or ()]
    made = [(template.get("metadata") or {}).get("labels") or {} for template in templates]
    return not _affine_groups(case) and any(labels.items() <= have.items() for labels in wanted for have in made)


def check_never(case: Case) -> Iterator[Wrong]:
    """`Can never start`: with every other job ended, a trial does not start it; and no other answer does so."""
    stage, said = case.found.stage, case.found.summary
    if stage in _HELD or re.search(r"does not exist|is (Closed|Closing|closed|closing)", said):
        return
    starts = case.world.starts(case.job, _alone(case), seconds=10)
    if stage in _NEVER and starts:
        yield Wrong("never: starts alone", said, "it starts when every other job has ended")
    if re.search(_COMES_LATER, case.text):
        return
    if _selects_pods(case):
        return  # pods of others decide, which the trial ends
    if stage not in _NEVER and not starts and "never" not in said and case.job.running < case.job.minimum:
        yield Wrong(f"never unsaid: {stage}", said, "it does not start with every other job ended either")


def check_cause(case: Case) -> Iterator[Wrong]:
    """The obstacle of the headline, removed: the job starts (is admitted), or the next answer names another one."""
    stage, said = case.found.stage, case.found.summary
    if stage in {"VictimsTerminating", "Schedulable"}:  # `check_coming` tries the latter
        return
    reached = _admitted if stage == "NotAdmitted" and not _admitted(case, case.world) else _started
    removed: list[Factor] = []
    now, answer = case, said
    while len(removed) < 12:
        named = causes_of(answer, now)
        if not named:
            if answer == said:
                yield Wrong("cause: not recognized", said, "the headline names no cause that the oracle knows")
            return
        if "own" in named:  # a request that only its owner can correct
            return
        fresh = [factor for factor in named if factor not in removed]
        if not fresh:
            yield Wrong(
                f"cause: remains, {named[0].partition(' ')[0]}",
                answer,
                f"without {', '.join(removed)} it does not start, and the answer names {named[0]} again",
            )
            return
        removed += fresh
        world = _apply(case, removed)
        if reached(case, world):
            break
        job = next((one for one in world.waiting() if one.group == case.job.group), None)
        if job is None:
            return
        found, text = world.answer(job.name)
        now, answer = Case(world, job, found, text), found.summary
        if reached is _started and found.stage in _COMING:
            return
    yield from _relevant(case, causes_of(said, case), reached)


def _relevant(case: Case, named: list[Factor], reached: Callable[[Case, World], bool]) -> Iterator[Wrong]:
    """Whether the obstacle matters: there are others whose removal helps with its removal only."""
    if reached(case, _apply(case, named)):
        return
    if "affinity" in named and (re.search(r"(is|are) pending", case.found.summary) or _affine_jobs_wait(case)):
        return  # without the other obstacles those pods start, too, and the affinity is met
    rest = [factor for factor in EVERY if not _covers(factor, named)]
    if "queues" not in rest:  # first: a gang that may be smaller hides a limit, which needs those above it gone, too
        rest[:0] = [f"queue {name}" for name in chain(case.world, case.job.queue) if f"queue {name}" not in named]
    if not reached(case, _apply(case, rest)):
        return
    # With all others removed it starts: a joint cause is one that some of the others need.
    have: list[Factor] = []
    for order in (rest, rest[::-1]):
        have = []
        for factor in order:
            have.append(factor)
            if reached(case, _apply(case, have)):
                break
            if reached(case, _apply(case, [*have, *named])):
                return
    if any(one.partition(" ")[0] in _CHECKED for one in named):
        return
    for alternative in rest:  # of two obstacles either of which keeps the job from starting elsewhere, one is named
        others = [factor for factor in rest if factor != alternative]
        if not reached(case, _apply(case, others)) and reached(case, _apply(case, [*others, *named])):
            return
    yield Wrong(
        f"cause: irrelevant, {named[0].partition(' ')[0]}",
        case.found.summary,
        f"it starts without {have[-1]}, and {named[0]} does not matter",
    )


#: Causes that `check_objects` compares with the objects: other obstacles may hide them.
_CHECKED: Final = frozenset({"state", "fifo", "gates", "scheduler", "missing-queue", "overcommit"})


def _covers(factor: Factor, named: list[Factor]) -> bool:
    """Whether removing a factor removes a named one."""
    kinds = {one.partition(" ")[0] for one in named}
    return (
        factor in named
        or (factor in {"queues", "share", "guarantees"} and bool(kinds & {"queue", "share", "guarantees"}))
        or (factor == "overcommit" and "overcommit" in kinds)
        or (factor == "devices" and any(one.startswith(("node nvidia", "node volcano")) for one in named))
    )


# --- sentences about the future -------------------------------------------------------------------------------------

_STARTS_WHEN: Final = re.compile(
    rf"(?P<who>The gang|The next pod|It|The job|Both pods|All \d+) (starts?|is admitted|start) when (?P<missing>{_N}) "
    rf"(?P<resource>{_CARD}) of (its parent |its ancestor )?queue (?P<queue>\S+) becomes? free"
    rf"(, or with a quota of (?P<quota>{_N}))?"
)
_STARTS_WITH: Final = re.compile(
    rf"(?P<who>The gang|The next pod|It|The job|Both pods|All \d+) (starts?|is admitted|start) with a quota of "
    rf"(?P<quota>{_N}) (?P<resource>{_CARD}) of (its parent |its ancestor )?queue (?P<queue>\S+[^.\s])"
)


def check_starts_when(case: Case) -> Iterator[Wrong]:
    """`starts when N R of queue Q become free, or with a quota of M`; `starts with a quota of M R of queue Q`."""
    for said in case.sentences:
        match = _STARTS_WHEN.search(said) or _STARTS_WITH.search(said)
        if match is None:
            continue
        reached = _admitted if "admitted" in match[0] else _started
        if match["quota"]:
            limit = _limited(match["queue"], match["resource"], match["quota"])
            if not reached(case, case.world.after(limit)):
                yield Wrong("starts when: quota", said, f"it does not start with a quota of {match['quota']}")
            elif re.fullmatch(r"\d+", match["quota"]) and match["resource"] != "memory":
                less = _limited(match["queue"], match["resource"], str(int(match["quota"]) - 1))
                if reached(case, case.world.after(less)):
                    yield Wrong("starts when: quota is not minimal", said, "it starts with a smaller quota")
        if "missing" not in match.groupdict():
            continue
        freed = _freed(case, match["queue"], match["resource"], number_of(match["missing"]))
        if freed is not None and not reached(case, case.world.after(freed)):
            yield Wrong("starts when: freed", said, "it does not start when that much becomes free")


def _limited(queue: str, resource: str, amount: str) -> Edit:
    def edit(objects: list[Json]) -> None:
        for obj in objects:
            if obj["kind"] == "Queue" and obj["metadata"]["name"] == queue:
                if resource.startswith("NVIDIA"):
                    quota = json.loads(notes(obj).get(QUOTA) or "{}")
                    quota[resource] = int(float(amount))
                    obj["metadata"].setdefault("annotations", {})[QUOTA] = json.dumps(quota)
                else:
                    obj.setdefault("spec", {}).setdefault("capability", {})[resource] = amount

    return edit


def _freed(case: Case, queue: str, resource: str, amount: float) -> Edit | None:
    """The end of workloads below a queue that hold this much of a resource; None where they hold less.

    Those that the job has an affinity to stay.
    """
    from tests.insight.oracle_figures import held_by

    world, freed, groups, kept = case.world, 0.0, set(), _affine_groups(case)
    below = {obj["metadata"]["name"] for obj in world.of("Queue") if queue in chain(world, obj["metadata"]["name"])}
    for name, (its_queue, amounts) in sorted(held_by(world).items()):
        is_other = name != case.job.group and name not in kept
        if its_queue in below and is_other and amounts.get(resource) and freed < amount:
            freed += amounts[resource]
            groups.add(name)
    if freed < amount:
        return None

    def edit(objects: list[Json]) -> None:
        owners = {
            ref["uid"]
            for obj in objects
            if obj["kind"] == "PodGroup" and obj["metadata"]["name"] in groups
            for ref in obj["metadata"].get("ownerReferences") or ()
        }
        owners |= {
            ref["uid"]
            for obj in objects
            if obj["kind"] == "ReplicaSet" and obj["metadata"]["uid"] in owners
            for ref in obj["metadata"].get("ownerReferences") or ()
        }
        objects[:] = [
            obj
            for obj in objects
            if not (
                (obj["kind"] == "Pod" and notes(obj).get(GROUP) in groups)
                or (obj["kind"] == "PodGroup" and obj["metadata"]["name"] in groups)
                or obj["metadata"].get("uid") in owners
            )
        ]

    return edit


_PREEMPT: Final = re.compile(r"(?P<actions>preempt|reclaim|preempt and reclaim) (is|are) not in `actions`")


def check_preemption(case: Case) -> Iterator[Wrong]:
    """`preempt is not in actions; with it ... the job starts`, `would not help`."""
    for said in case.sentences:
        match = _PREEMPT.search(said)
        if match is None or "forbids" in said:
            continue
        conf = case.world.conf or _built_in()
        actions = match["actions"].replace(" and ", ", ")
        conf = re.sub(r'actions: "([^"]*)"', rf'actions: "\1, {actions}"', conf)
        starts = case.world.starts(case.job, conf=conf, seconds=45)
        if "would not help" in said and starts:
            yield Wrong("preemption: helps", said, f"with {actions} it starts")
        if "the job starts" in said and not starts:
            yield Wrong("preemption: does not help", said, f"with {actions} it does not start")


def _built_in() -> str:
    from capcard_sched.framework.conf.scheduler_conf import default_text

    return default_text()


def check_coming(case: Case) -> Iterator[Wrong]:
    """`The next session schedules it`; and a job that starts without a change is announced."""
    if case.found.stage == "Schedulable" and not _started(case, case.world.after()):
        group = case.world.get("PodGroup", case.job.group) or {}
        if "admits" not in case.found.summary or (group.get("status") or {}).get("phase") != "Pending":
            yield Wrong("coming: not scheduled", case.found.summary, "it does not start in the following sessions")


_FITS: Final = re.compile(r"^(?P<fit>\d+) of (?P<all>\d+) pending pods? fits? now")


def check_fits(case: Case) -> Iterator[Wrong]:
    """`2 of 4 pending pods fit now`: as many start when the gang may be smaller."""
    match = _FITS.search(case.found.summary)
    if match is None:
        return
    pending = [pod for pod in case.world.members(case.job.group) if not pod["spec"].get("nodeName") and not ended(pod)]
    if len(pending) != int(match["all"]):
        yield Wrong("fits: pending", case.found.summary, f"{len(pending)} pods are pending")

    if "proportion gives" in case.found.summary:  # a share depends on what the other jobs request
        return

    def alone(objects: list[Json]) -> None:
        """No other job is scheduled: its controller would create its pods anew."""
        for obj in objects:
            if obj["kind"] == "Pod" and not obj["spec"].get("nodeName") and notes(obj).get(GROUP) != case.job.group:
                obj["spec"]["schedulerName"] = "other"

    world = case.world.after(removal("members", case.world, case.job).edit, alone, seconds=3)
    started = world.running(case.job) - case.job.running
    if started != int(match["fit"]):
        yield Wrong("fits: count", case.found.summary, f"{started} start when the gang may be smaller")


# --- contradictions -------------------------------------------------------------------------------------------------

#: Pairs of patterns of one answer that exclude each other.
CONTRADICTIONS: Final = (
    (r"Can never start", r"starts? when|is admitted when|Expected start:\s+in \d"),
    (r"Quota is not the reason", r"Quota is too small as well|quota too:|^\S+: Queue \S+ has (no|too little) quota"),
    (r"Cards are not the reason", r"Queue \S+ has (no|too little) quota left: \d+ of \d+ NVIDIA"),
    (r"would not help", r"with (it|both changed), .* the job starts"),
    (r"Stage:\s+over quota", r"Quota is not the reason"),
    (r"Stage:\s+no node fits", r"pending pods? fits? now"),
    (r"\b0 of 0 ", r""),
    (r"has no quota left", r"has too little quota left"),
)


def check_contradictions(case: Case) -> Iterator[Wrong]:
    """No two sentences exclude each other."""
    for one, other in CONTRADICTIONS:
        first, second = re.search(one, case.text, re.MULTILINE), re.search(other, case.text, re.MULTILINE)
        if first and second:
            yield Wrong(f"contradiction: {one}", f"{_line(case, first)} / {_line(case, second)}", "one of them")
    for said in case.sentences:
        if re.search(r"<[^<>]*>", said):
            yield Wrong("contradiction: angle brackets", said, "plain words")
    counts = Counter(case.sentences)
    for text, count in counts.items():
        if count > 1:
            yield Wrong("contradiction: said twice", text, "once")


def _line(case: Case, match: re.Match[str]) -> str:
    start = case.text.rfind("\n", 0, match.start()) + 1
    return case.text[start:].partition("\n")[0].strip()


# --- objects --------------------------------------------------------------------------------------------------------


def check_objects(case: Case) -> Iterator[Wrong]:
    """Sentences about gates, schedulers, failed pods and queues name what the objects have."""
    world, said = case.world, case.found.summary
    pods = world.members(case.job.group)
    gated = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("schedulingGates") and not ended(pod)]
    if (match := re.search(r"(\d+) pods? \((.*?)\) ha(?:s|ve) scheduling gate", case.text)) and int(match[1]) != len(
        gated
    ):
        yield Wrong("objects: gates", said, f"gated are {gated}")
    is_foreign = case.found.stage == "NotProcessed"  # another scheduler has the pods
    if gated and not is_foreign and case.job.running < case.job.minimum and "gate" not in case.text:
        yield Wrong("objects: gates unsaid", said, f"gated are {gated}")
    foreign = {pod["spec"].get("schedulerName", "default-scheduler") for pod in pods}
    if foreign - {"volcano"} and not any(name in case.text for name in foreign - {"volcano"}):
        yield Wrong("objects: scheduler unsaid", said, f"pods are of {sorted(foreign)}")
    failed = [pod["metadata"]["name"] for pod in pods if (pod.get("status") or {}).get("phase") == "Failed"]
    for name in failed:
        if name not in case.text:
            yield Wrong("objects: failed pod unsaid", said, f"{name} failed")
    if world.get("Queue", case.job.queue) is None and not is_foreign and "does not exist" not in case.text:
        yield Wrong("objects: missing queue unsaid", said, f"queue {case.job.queue} does not exist")
    alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in {"Failed", "Unknown"}]
    alive = [pod for pod in alive if not pod["metadata"].get("deletionTimestamp")]
    is_manual = case.job.name.startswith("podgroup/") and pods  # else controllers create the pods
    if is_manual and len(alive) < case.job.minimum and "not complete" not in case.text and not gated:
        yield Wrong("objects: missing member unsaid", said, f"{len(alive)} of {case.job.minimum} pods exist")
    closed = [
        name
        for name in chain(world, case.job.queue)
        if ((world.get("Queue", name) or {}).get("status") or {}).get("state") in {"Closed", "Closing"}
    ]
    if closed and not _admitted(case, world) and case.found.stage == "NotAdmitted" and closed[0] not in said:
        yield Wrong("objects: closed queue unsaid", said, f"{closed} are closed")


def check_stage(case: Case) -> Iterator[Wrong]:
    """A stage and its headline are of one kind."""
    wanted = {"OverQuota": r"quota|limit of queue|has \S+ left", "NotAdmitted": r"admit|queue|Queue|PodGroup"}
    pattern = wanted.get(case.found.stage)
    if pattern is not None and not re.search(pattern, case.found.summary):
        yield Wrong(f"stage: {case.found.stage}", case.found.summary, "a headline about another cause")


def check_fixes(case: Case) -> Iterator[Wrong]:
    """Each printed fix, parsed and applied, starts the job.

    The world after a fix begins without the moments at which jobs lost their admission: while jobs take turns, it may
    attempt them in another order.
    """
    found, _ = case.world.answer(case.job.name, fix=True)
    for kind, said, right in wrong_fixes(case.world, case.job, found):
        if kind.startswith("does not start it") and not case.world.is_settled:
            continue
        yield Wrong(f"fix: {kind}", said, right)


def check_figures(case: Case) -> Iterator[Wrong]:
    """Figures of limits, nodes and counts are those of the objects."""
    if not case.world.is_settled:
        return
    for kind, said, right in wrong_figures(case.world, case.job, case.found, case.text):
        yield Wrong(f"figures: {kind}", said, right)


#: Checkers without trials, with few of them, and with many.
CHEAP: Final = (check_objects, check_stage, check_figures, check_contradictions)
TRIALS: Final = (check_coming, check_never, check_starts_when, check_preemption, check_fits)
EXPENSIVE: Final = (check_cause, check_fixes)
Check: TypeAlias = Callable[[Case], Iterator[Wrong]]


def wrong_sentences(case: Case, checks: Iterable[Check] = (*CHEAP, *TRIALS, *EXPENSIVE)) -> list[Wrong]:
    """The wrong sentences of one answer. While other jobs change, its figures are of a moment: no trial is made."""
    if case.found.stage not in _COMING and _started(case, case.world.after(seconds=4)):
        found = [one for check in CHEAP for one in check(case)]
        return [*found, Wrong("coming: unsaid", case.found.summary, "it starts without a change")]
    return [one for check in checks for one in check(case)]


def findings(cluster: Cluster, seed: int) -> list[tuple[str, Wrong]]:
    """The wrong sentences about one waiting job of a cluster, with its name; the seed selects job and checkers."""
    world = simulated(cluster)
    waiting = world.waiting()
    if not waiting:
        return []
    job = waiting[seed // 7 % len(waiting)]
    checks: list[Check] = [*CHEAP, *TRIALS]
    if seed % 2 == 0:
        checks.append(check_cause)
    if seed % 16 == 1:
        checks.append(check_fixes)
    case = Case(world, job, *world.answer(job.name))
    return [(job.name, one) for one in wrong_sentences(case, checks)]
