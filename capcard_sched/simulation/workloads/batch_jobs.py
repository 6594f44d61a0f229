"""The Job controller of Kubernetes: pods of a Job of `batch/v1`, up to `spec.parallelism` at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.jobs.job_spec import pod_from
from capcard_sched.controllers.objects import POD, JsonObject, key_of, meta, spec, status
from capcard_sched.model.kinds import BATCH_JOB
from capcard_sched.simulation.workloads.replicas import is_live, is_ready
from capcard_sched.simulation.workloads.workqueue import WorkloadController, spelled

if TYPE_CHECKING:
    from capcard_sched.simulation.store import Store

#: Step between the numbers of consecutive names, and the letters of one.
_STRIDE, _SUFFIX_LETTERS = 9_876_553, 5
_BACKOFF_LIMIT: Final = 6
_ENDED: Final = ("Complete", "Failed")


class BatchJobController(WorkloadController):
    """Creates the pods of a Job until its completions have succeeded, or more pods failed than `backoffLimit`.

    A failed pod is replaced at once. Pods of another controller's Job (`spec.managedBy`) and indexes are not simulated.
    """

    kind, owned = BATCH_JOB, POD

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._made: dict[str, int] = {}

    def _keep(self, found: JsonObject) -> None:
        wanted = spec(found)
        if meta(found).get("deletionTimestamp") or wanted.get("managedBy") or _is_ended(found):
            return
        pods = self._store.owned(found, POD)
        live = [pod for pod in pods if is_live(pod)]
        phases = [status(pod).get("phase") for pod in pods]
        # Pods that are gone are in the status of the input only.
        succeeded = max(phases.count("Succeeded"), status(found).get("succeeded") or 0)
        failed = max(phases.count("Failed"), status(found).get("failed") or 0)
        parallelism = wanted.get("parallelism", 1)
        completions = wanted.get("completions", 1 if "parallelism" not in wanted else None)
        missing = (0 if succeeded else parallelism) if completions is None else max(0, completions - succeeded)
        condition = "Failed" if failed > wanted.get("backoffLimit", _BACKOFF_LIMIT) else ""
        if not condition and succeeded and not missing and not (live and completions is None):
            condition = "Complete"
        active = 0 if condition or wanted.get("suspend") else min(parallelism, missing)
        if completions is None and succeeded and not condition:
            active = len(live)  # of a work queue, the pods that run may end
        for pod in live[active:]:
            self._store.delete(POD, *key_of(pod))
        for _ in range(active - len(live)):
            self._store.create(POD, self._pod(found))
        live = [pod for pod in self._store.owned(found, POD) if is_live(pod)]
        written: JsonObject = {
            "active": len(live) or None,
            "ready": sum(map(is_ready, live)),
            "succeeded": succeeded or None,
            "failed": failed or None,
        }
        if condition:
            written["conditions"] = [{"type": condition, "status": "True"}]
        self._store.patch(BATCH_JOB, *key_of(found), {"status": written})

    def _pod(self, found: JsonObject) -> JsonObject:
        uid, namespace, name = meta(found)["uid"], meta(found)["namespace"], meta(found)["name"]
        while True:
            self._made[uid] = self._made.get(uid, 0) + 1
            suffix = spelled(self._made[uid] * _STRIDE, _SUFFIX_LETTERS)
            if not self._store.existed(POD, namespace, f"{name}-{suffix}"):
                break
        pod = pod_from(spec(found)["template"], name=f"{name}-{suffix}", owner=found)
        labels = {"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/controller-uid": uid}
        return {**pod, "metadata": {**meta(pod), "labels": {**(meta(pod).get("labels") or {}), **labels}}}


def _is_ended(found: JsonObject) -> bool:
    conditions = status(found).get("conditions") or ()
    return any(one.get("type") in _ENDED and one.get("status") == "True" for one in conditions)
