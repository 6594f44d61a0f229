"""`capcard-sched job`: list, run, suspend, resume and delete Jobs of a live cluster."""

import sys
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.live_objects import (
    Live,
    LiveObjects,
    OutputFlag,
    WatchFlag,
    print_objects,
    print_one,
    show_objects,
    with_objects,
)

app = cyclopts.App(name="job", help="List, run, suspend, resume and delete Jobs.", result_action="return_value")

_JOB_TYPE = "volcano.sh/job-type"


def _status(field: str) -> Any:
    return lambda job: (job.get("status") or {}).get(field, 0)


_COLUMNS = (
    ("Name", lambda job: job["metadata"]["name"]),
    ("Creation", lambda job: job["metadata"]["creationTimestamp"][:10]),
    ("Phase", lambda job: ((job.get("status") or {}).get("state") or {}).get("phase", "")),
    ("JobType", lambda job: (job["metadata"].get("labels") or {}).get(_JOB_TYPE, "Batch")),
    ("Replicas", lambda job: sum(task.get("replicas", 1) for task in job["spec"].get("tasks") or ())),
    ("Min", lambda job: job["spec"].get("minAvailable", 0)),
    ("Pending", _status("pending")),
    ("Running", _status("running")),
    ("Succeeded", _status("succeeded")),
    ("Failed", _status("failed")),
    ("Unknown", _status("unknown")),
    ("RetryCount", _status("retryCount")),
)
_NAMESPACE = (("Namespace", lambda job: job["metadata"]["namespace"]),)
_WIDE = (
    ("Queue", lambda job: job["spec"].get("queue", "default")),
    ("Reason", lambda job: ((job.get("status") or {}).get("state") or {}).get("reason", "")),
)


@app.command(name="list")
def list_jobs(
    *,
    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative=())] = False,
    selector: Annotated[str, Parameter(name=["--selector", "-l"])] = "",
    queue: Annotated[str, Parameter(name=["--queue", "-q"])] = "",
    scheduler: Annotated[str, Parameter(name=["--scheduler", "-S"])] = "",
    watch: WatchFlag = False,
    output: OutputFlag = "table",
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """List Jobs.

    Args:
        all_namespaces: List the Jobs of all namespaces.
        selector: Label selector.
        queue: Jobs of this queue only.
        scheduler: Jobs with this schedulerName only.
        watch: After the list, print each Job that changes.
        output: Output format.
        live: Flags that select the cluster and the namespace.
    """
    columns = (*_NAMESPACE, *_COLUMNS) if all_namespaces else _COLUMNS

    def keep(job: dict[str, Any]) -> bool:
        spec = job["spec"]
        return (not queue or spec.get("queue", "default") == queue) and (
            not scheduler or spec.get("schedulerName", "") == scheduler
        )

    async def work(objects: LiveObjects) -> int:
        namespace = None if all_namespaces else objects.namespace
        if watch:
            batches = objects.list_and_watch("Job", namespace=namespace, labels=selector)
            return await show_objects(batches, columns, _WIDE, output, keep)
        found = await objects.list("Job", namespace=namespace, labels=selector)
        print_objects([job for job in found if keep(job)], columns, _WIDE, output)
        return 0

    return with_objects(live, work)


@app.command(name="get")
def get_job(
    name: str,
    *,
    watch: WatchFlag = False,
    output: OutputFlag = "table",
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """Show one Job.

    Args:
        name: The Job.
        watch: Print the Job again whenever it changes.
        output: Output format.
        live: Flags that select the cluster and the namespace.
    """

    async def work(objects: LiveObjects) -> int:
        job = await objects.get("Job", name)
        if watch:
            field = f"metadata.name={name}"
            batches = objects.list_and_watch("Job", namespace=objects.namespace, fields=field)
            return await show_objects(batches, _COLUMNS, _WIDE, output)
        print_one(job, _COLUMNS, _WIDE, output)
        return 0

    return with_objects(live, work)


@app.command(name="run")
def run_job(
    name: str = "",
    *,
    file: Annotated[str, Parameter(name=["--file", "-f"])] = "",
    image: Annotated[str, Parameter(name=["--image", "-i"])] = "busybox",
    min_available: Annotated[int, Parameter(name=["--min", "-m"])] = 1,
    replicas: Annotated[int, Parameter(name=["--replicas", "-r"])] = 1,
    requests: Annotated[str, Parameter(name=["--requests", "-R"])] = "cpu=1000m,memory=100Mi",
    limits: Annotated[str, Parameter(name=["--limits", "-L"])] = "cpu=1000m,memory=100Mi",
    queue: Annotated[str, Parameter(name=["--queue", "-q"])] = "default",
    scheduler: Annotated[str, Parameter(name=["--scheduler", "-S"])] = "capcard-sched",
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """Create a Job: that of a manifest, or one of a single task.

    Args:
        name: Name of the Job; not needed with -f.
        file: Manifest of one Job, YAML or JSON.
        image: Image of the container.
        min_available: Pods of the gang.
        replicas: Pods of the task.
        requests: Requests of the container, such as cpu=1,memory=1Gi.
        limits: Limits of the container.
        queue: Queue of the Job.
        scheduler: schedulerName of the Job.
        live: Flags that select the cluster and the namespace.
    """
    if file:
        job = _job_of(file)
        if isinstance(job, int):
            return job
    elif not name:
        return usage_error("job name cannot be left blank")
    else:
        try:
            resources = {"requests": _amounts(requests), "limits": _amounts(limits)}
        except ValueError as error:
            return usage_error(str(error))
        container = {"name": name, "image": image, "resources": resources}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        task = {"name": "task", "replicas": replicas, "template": template}
        spec = {"schedulerName": scheduler, "queue": queue, "minAvailable": min_available, "tasks": [task]}
        job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}

    async def work(objects: LiveObjects) -> int:
        created = await objects.create(job)
        print(f"run job {created['metadata']['name']} successfully")
        return 0

    return with_objects(live, work)


def _job_of(path: str) -> dict[str, Any] | int:
    """The Job of a manifest, or the exit status of an error."""
    from capcard_sched.simulation.manifests import ManifestError, read_manifests

    try:
        documents = [document.value for document in read_manifests([path], sys.stdin)]
    except ManifestError as error:
        return usage_error(str(error))
    if len(documents) != 1 or documents[0].get("kind") != "Job" or not (documents[0].get("metadata") or {}).get("name"):
        return usage_error(f"{path}: expected one Job (batch.volcano.sh/v1alpha1) with a name")
    job: dict[str, Any] = documents[0]
    return job


def _amounts(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        resource, equals, amount = part.partition("=")
        if not (equals and resource and amount):
            raise ValueError(f"{part!r}: expected RESOURCE=QUANTITY, such as cpu=1,memory=1Gi")
        found[resource] = amount
    return found


@app.command(name="suspend")
def suspend_job(name: str, *, live: Live = Live()) -> int:  # noqa: B008 - frozen
    """Abort a Job; it can be resumed.

    Args:
        name: The Job.
        live: Flags that select the cluster and the namespace.
    """
    return _command(name, "AbortJob", "suspend", live)


@app.command(name="resume")
def resume_job(name: str, *, live: Live = Live()) -> int:  # noqa: B008 - frozen
    """Resume a suspended Job.

    Args:
        name: The Job.
        live: Flags that select the cluster and the namespace.
    """
    return _command(name, "ResumeJob", "resume", live)


def _command(name: str, action: str, verb: str, live: Live) -> int:
    async def work(objects: LiveObjects) -> int:
        await objects.command(action, await objects.get("Job", name))
        print(f"{verb} job {name} successfully")
        return 0

    return with_objects(live, work)


@app.command(name="delete")
def delete_job(name: str, *, live: Live = Live()) -> int:  # noqa: B008 - frozen
    """Delete a Job and its pods.

    Args:
        name: The Job.
        live: Flags that select the cluster and the namespace.
    """

    async def work(objects: LiveObjects) -> int:
        await objects.delete("Job", name)
        print(f"delete job {name} successfully")
        return 0

    return with_objects(live, work)
