"""Gangs that wait for ever: their operator creates some pods only when others of the gang have run.

A PodGroup of such an operator can count pods that do not exist before the gang starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.model import annotations as keys
from capcard_sched.model.kinds import group_of
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.quoting import plural
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Kinds of a view that have such pods.
LATE_KINDS: Final = ("JobSet.jobset.x-k8s.io/v1alpha2", "MPIJob.kubeflow.org/v2beta1")


class FirstPods(NamedTuple):
    """The pods of a gang that exist before any of it runs, and the sentence about the others."""

    pods: int
    others: str


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any, default: int) -> int:
    found = whole_number(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    return default if found is None else found


def first_pods(obj: Mapping[str, Any]) -> Iterator[tuple[str, str, FirstPods]]:
    """Namespace and name of each PodGroup whose pods an object creates in steps, and its first pods."""
    meta, spec = _map(obj.get("metadata")), _map(obj.get("spec"))
    namespace, name = str(meta.get("namespace") or "default"), str(meta.get("name") or "")
    kind, group = obj.get("kind"), group_of(str(obj.get("apiVersion") or ""))
    if (kind, group) == ("MPIJob", "kubeflow.org") and spec.get("launcherCreationPolicy") == "WaitForWorkersReady":
        workers = _number(_map(_map(spec.get("mpiReplicaSpecs")).get("Worker")).get("replicas"), 0)
        yield namespace, name, FirstPods(workers, f"MPIJob {name} creates the launcher when all workers are ready")
    elif (kind, group) == ("JobSet", "jobset.x-k8s.io"):
        yield from _of_job_set(meta, spec, namespace, name)


def _of_job_set(
    meta: Mapping[str, Any], spec: Mapping[str, Any], namespace: str, name: str
) -> Iterator[tuple[str, str, FirstPods]]:
    rows = spec.get("replicatedJobs")
    jobs = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    in_order = _map(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    first = [row for number, row in enumerate(jobs) if not row.get("dependsOn") and not (in_order and number)]
    if len(first) == len(jobs):
        return
    count, groups, after = 0, set[str](), list[str]()
    for row in jobs:
        body = _map(_map(row.get("template")).get("spec"))
        pods = _number(row.get("replicas"), 1) * _number(body.get("parallelism"), 1)
        count += pods if row in first else 0
        notes = _map(_map(_map(body.get("template")).get("metadata")).get("annotations"))
        groups.add(str(notes.get(keys.GROUP_NAME) or name))
        steps = row.get("dependsOn")
        after += [str(_map(step).get("name")) for step in steps] if isinstance(steps, list) else []
    written = meta.get("ownerReferences")
    references = [_map(each) for each in written] if isinstance(written, list) else []
    owners = [each for each in references if each.get("controller")]
    shown = f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else f"JobSet {name}"
    step = ", ".join(dict.fromkeys(after)) or str(first[0].get("name") if first else "")
    for group in groups:
        yield namespace, group, FirstPods(count, f"{shown} creates the others after step {step}")


def check_first_pods(group: Mapping[str, Any], first: FirstPods | None) -> Iterator[Finding]:
    """An error for a PodGroup with a minimum that the first pods do not reach: it waits for ever."""
    minimum = _number(_map(group.get("spec")).get("minMember"), 0)
    if first is not None and first.pods < minimum:
        message = f"minMember {minimum}, and the operator first creates {plural(first.pods, 'pod')}; {first.others}"
        yield Finding("error", "spec.minMember", message, f"minMember (of an operator: minAvailable) {first.pods}")
