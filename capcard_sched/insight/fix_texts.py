"""Texts and commands of fixes. A command makes exactly the change that the trial proved, where one command can."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import annotations_of, spec
from capcard_sched.framework.explain.sentences import form, quantity, toleration
from capcard_sched.insight.changes import Edits, JobObjects, ProposedChange, apply_change, cards_named, changed_conf
from capcard_sched.insight.fix_victims import task_named
from capcard_sched.model.annotations import CARD_NAME, CARD_QUOTA, CARD_REQUEST, JOB_NAME
from capcard_sched.model.quantity import format_amount, in_units
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.status import PLACED_STATUSES
from capcard_sched.model.trials import EndedPods, SuggestedChange, SuggestedFix
from capcard_sched.model.workload import WORKLOAD_KINDS, display_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.object_view import Json, ObjectView
    from capcard_sched.model.job import Job

#: Pods that one command names.
_MOST_PODS: Final = 20
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"


def describe_fix(
    core: Core, view: ObjectView, job: Job, vcjob: Json | None, changes: Sequence[ProposedChange]
) -> SuggestedFix:
    """The changes in words, with commands, and the pods that they end. Its costs are those of a trial."""
    one = _Texts(core, view, job, vcjob, changes)
    found = [one.describe(change) for change in changes if change.kind != "End"]
    ended = one.ended()
    found += [one.end(pods) for pods in ended]
    return SuggestedFix(changes=tuple(found), ended=tuple(ended))


class _Texts:
    def __init__(
        self, core: Core, view: ObjectView, job: Job, vcjob: Json | None, changes: Sequence[ProposedChange]
    ) -> None:
        self._core, self._job, self._vcjob, self._changes = core, job, vcjob, changes
        self._edits = Edits(view, vcjob)
        objects = JobObjects(self._edits, job, vcjob)
        for change in changes:
            if change.kind != "End":
                apply_change(change, self._edits, objects, None)

    def describe(self, change: ProposedChange) -> SuggestedChange:
        name = change.target[2]
        match change.kind:
            case "Quota":
                return self._quota(change)
            case "Capability":
                return self._capability(change)
            case "OpenQueue":
                state = self._core.snapshot().state.queues[name].state
                return _change(change, f"open queue {name}", f"capcard-sched queue open {name}", state, "Open")
            case "Uncordon":
                return _change(change, f"uncordon node {name}", f"kubectl uncordon {name}", "cordoned", "schedulable")
            case "Untaint":
                command = f"kubectl taint node {name} {shlex.quote(change.key + '-')}"
                return _change(change, f"remove the taint {change.key} of node {name}", command, change.key)
            case "Action" | "Plugin":
                return self._conf(change)
            case _:
                return self._of_job(change)

    # --- queues -----------------------------------------------------------------------------------------------------

    def _quota(self, change: ProposedChange) -> SuggestedChange:
        queue = self._edits.get(*change.target) or {}
        text = annotations_of(queue)[CARD_QUOTA]
        more = change.value - change.present
        return _change(
            change,
            f"quota of {change.key} in queue {change.target[2]}: {change.present} → {change.value} (+{more})",
            f"kubectl annotate queue {change.target[2]} --overwrite {shlex.quote(f'{CARD_QUOTA}={text}')}",
            str(change.present),
            str(change.value),
        )

    def _capability(self, change: ProposedChange) -> SuggestedChange:
        before, after = format_amount(change.key, change.present), format_amount(change.key, change.value)
        more = quantity(change.key, in_units(change.key, change.value - change.present))
        patch = json.dumps({"spec": {"capability": {change.key: after}}})
        return _change(
            change,
            f"capability {change.key} of queue {change.target[2]}: {before} → {after} (+{more.split()[0]})",
            f"kubectl patch queue {change.target[2]} --type merge -p {shlex.quote(patch)}",
            before,
            after,
        )

    # --- the job ----------------------------------------------------------------------------------------------------

    def _of_job(self, change: ProposedChange) -> SuggestedChange:
        job = self._job
        name = self._name()
        match change.kind:
            case "AcceptCard":
                return self._accept_card(change)
            case "CardRequest":
                text = f"drop the annotation {CARD_REQUEST} of {name} ({change.key})"
                command = f"kubectl -n {job.namespace} annotate podgroup {job.name} {CARD_REQUEST}-"
                return _change(change, text, command, change.key)
            case "MinAvailable":
                before, after = str(change.present), str(change.value)
                text = f"minAvailable of {name}: {before} → {after}"
                return _change(change, text, self._patch("minAvailable", "minMember", change.value), before, after)
            case "Priority":
                text = f"priorityClassName of {name}: {change.key} (value {change.value})"
                patch = self._patch("priorityClassName", "priorityClassName", change.key)
                return _change(change, text, patch, job.priority_class_name, change.key)
            case "Tolerate":
                yaml = f"tolerations: [{toleration(change.key)}]  # in the spec of the pod template"
                return _change(change, f"{name} tolerates the taint {change.key}", "", "", change.key, yaml=yaml)
            case _:  # MoveQueue
                yaml = (
                    f"queue: {change.key}  # in the spec of the {'Job' if self._vcjob or job.owner_job else 'PodGroup'}"
                )
                text = f"{name} uses queue {change.key} instead of {job.queue}"
                return _change(change, text, "", job.queue, change.key, yaml=yaml)

    def _name(self) -> str:
        return display_name(self._job).partition("/")[2]

    def _accept_card(self, change: ProposedChange) -> SuggestedChange:
        name, before, after = self._name(), change.replaces, change.key
        templates = {
            task["name"]: cards_named(annotations_of(task.get("template") or {}))
            for task in spec(self._vcjob or {}).get("tasks") or ()
        }
        cards = {task.name: cards_named(task.cls.annotations) for task in self._job.pending.values()}
        pods = [pod for pod, named in cards.items() if named == before]
        tasks = [task for task, named in templates.items() if named == before]
        verb = "accepts"
        if len(pods) < len(cards):
            name, verb = (
                f"{plural(len(pods), 'pod')} of {name} ({brief(pods)})",
                form(len(pods), "accepts", "accept"),
            )
        elif not cards and len(tasks) < len(templates):
            name, verb = f"{name}, {form(len(tasks), 'task', 'tasks')} {brief(tasks)},", "accepts"
        instead = "" if not before or set(before.split("|")) & set(after.split("|")) else f" instead of {before}"
        of = f" of {form(len(tasks), 'task', 'tasks')} {brief(tasks)}" if len(tasks) < len(templates) else ""
        yaml = f"{CARD_NAME}: {after}  # in the annotations of the pod template{of}"
        command = ""
        if 0 < len(pods) <= _MOST_PODS:
            note = shlex.quote(f"{CARD_NAME}={after}")
            command = f"kubectl -n {self._job.namespace} annotate pod {' '.join(pods)} --overwrite {note}"
        return _change(change, f"{name} {verb} {after}{instead}", command, before, after, yaml=yaml)

    def _patch(self, of_job: str, of_group: str, value: object) -> str:
        """A merge patch of the vcjob, whose controller keeps the PodGroup in line, or of the PodGroup."""
        owner = self._vcjob["metadata"]["name"] if self._vcjob is not None else self._job.owner_job
        target = f"vcjob {owner}" if owner else f"podgroup {self._job.name}"
        patch = json.dumps({"spec": {of_job if owner else of_group: value}})
        return f"kubectl -n {self._job.namespace} patch {target} --type merge -p {shlex.quote(patch)}"

    # --- scheduler-conf ---------------------------------------------------------------------------------------------

    def _conf(self, change: ProposedChange) -> SuggestedChange:
        if change.kind == "Plugin":
            text = f"plugin {change.key} in the scheduler-conf"
            return _change(change, text, "", "", change.key, yaml=f"- name: {change.key}  # in the first tier")
        before = self._core.snapshot().conf
        after = changed_conf(before, self._changes, self._core.registry) or before
        return _change(
            change,
            f"action {change.key} in the scheduler-conf",
            "",
            ", ".join(before.actions),
            ", ".join(after.actions),
            yaml=f'actions: "{", ".join(after.actions)}"',
        )

    # --- ended pods -------------------------------------------------------------------------------------------------

    def ended(self) -> list[EndedPods]:
        """The pods that the changes end, by workload."""
        found: dict[tuple[str, str], list[str]] = {}
        for change in self._changes:
            if change.kind == "End":
                kind, namespace, name = change.target
                job = self._core.snapshot().state.jobs.get(f"{namespace}/{name}") if kind == "PodGroup" else None
                pods = sorted(task.name for task in job.tasks.values()) if job is not None else [name]
                owner = job if job is not None else self._owner(namespace, name)
                found.setdefault((change.key, owner.queue if owner is not None else ""), []).extend(pods)
        return [
            EndedPods(workload=workload, queue=queue, pods=tuple(pods)) for (workload, queue), pods in found.items()
        ]

    def _owner(self, namespace: str, pod: str) -> Job | None:
        task = task_named(self._core, namespace, pod)
        return task.job if task is not None else None

    def end(self, ended: EndedPods) -> SuggestedChange:
        """The change that ends pods of one workload."""
        namespace, _, workload = ended.workload.partition("/")
        kind, _, name = workload.partition("/")
        job = self._owner(namespace, ended.pods[0])
        count = plural(len(ended.pods), "pod")
        some = kind in {"deployment", "replicaset"} and job is not None and len(ended.pods) < len(job.tasks)
        text = f"end {count} of {ended.workload} ({brief(ended.pods)})" if some else f"end {ended.workload} ({count})"
        return SuggestedChange(
            kind="End",
            object=f"{WORKLOAD_KINDS.get(kind, kind)} {namespace}/{name}",
            text=text,
            command=self._command(ended, job),
        )

    def _command(self, ended: EndedPods, job: Job | None) -> str:
        namespace, _, workload = ended.workload.partition("/")
        kind, _, name = workload.partition("/")
        if (
            kind == "job"
            and job is not None
            and (job.owner_job or any(JOB_NAME in t.labels for t in job.tasks.values()))
        ):
            return f"capcard-sched job suspend {name} -n {namespace}"
        if kind == "job":
            return f'kubectl -n {namespace} patch job {name} --type merge -p \'{{"spec":{{"suspend":true}}}}\''
        if kind in {"deployment", "replicaset"} and job is not None:
            # A ReplicaSet deletes its pending pods first, whatever their cost.
            placed = {task.name for task in job.tasks.values() if task.status in PLACED_STATUSES}
            left = len(placed.difference(ended.pods))
            scale = f"kubectl -n {namespace} scale {kind} {name} --replicas={left}"
            if not left or len(ended.pods) > _MOST_PODS:
                return scale
            pods = " ".join(ended.pods)
            return f"kubectl -n {namespace} annotate pod {pods} --overwrite {_DELETION_COST}=-1 && {scale}"
        if kind == "statefulset":
            return f"kubectl -n {namespace} scale statefulset {name} --replicas=0"
        return f"kubectl -n {namespace} delete pod {' '.join(ended.pods)}" if len(ended.pods) <= _MOST_PODS else ""


def _change(
    change: ProposedChange, text: str, command: str, before: str = "", after: str = "", *, yaml: str = ""
) -> SuggestedChange:
    kind, namespace, name = change.target
    path = f"{namespace}/{name}" if namespace else name
    return SuggestedChange(
        kind=change.kind,
        object=f"{kind} {path}".strip(),
        subject=change.key,
        before=before,
        after=after,
        text=text,
        command=command,
        yaml=yaml,
    )
