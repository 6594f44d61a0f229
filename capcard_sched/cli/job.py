"""`capcard-sched job`: list, run, suspend, resume and delete Jobs of a live cluster."""

import sys
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.expected_start import (
    START_COLUMNS,
    HistoryFlag,
    LedgerFlag,
    check_history,
    read_history,
    with_expected_starts,
)
from capcard_sched.cli.lists import (
    Column,
    Listing,
    NamespacedListFlags,
    field,
    show_list,
)
from capcard_sched.cli.live_objects import Live, change_object, object_change, object_show
from capcard_sched.cli.sources.inputs import LoadedCluster
from capcard_sched.cli.sources.source import Source
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.timestamps import span

app = cyclopts.App(name="job", help="List, run, suspend, resume and delete Jobs.", result_action="return_value")


def _status(name: str) -> Any:
    return lambda job: (job.get("status") or {}).get(name, 0)


#: Of `job get`: the Job as the API server has it.
_OBJECT = Listing(
    "Job",
    (
        Column("NAME", lambda job: job["metadata"]["name"]),
        Column("QUEUE", lambda job: job["spec"].get("queue", "default")),
        Column("PHASE", lambda job: ((job.get("status") or {}).get("state") or {}).get("phase", "")),
        Column("REPLICAS", lambda job: sum(task.get("replicas", 1) for task in job["spec"].get("tasks") or ())),
        Column("MIN", lambda job: job["spec"].get("minAvailable", 0)),
        Column("PENDING", _status("pending")),
        Column("RUNNING", _status("running")),
        Column("SUCCEEDED", _status("succeeded")),
        Column("FAILED", _status("failed")),
        Column("RETRIES", _status("retryCount")),
        Column("CREATED", lambda job: job["metadata"]["creationTimestamp"]),
        Column("REASON", lambda job: ((job.get("status") or {}).get("state") or {}).get("reason", ""), shown="wide"),
    ),
    lambda job: f"job.batch.volcano.sh/{job['metadata']['name']}",
)


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else span(seconds)


LISTING = Listing(
    "Job",
    (
        Column("NAMESPACE", lambda job: job["namespace"], shown="all namespaces"),
        field("NAME", "name"),
        field("KIND", "kind"),
        field("QUEUE", "queue"),
        field("PHASE", "phase"),
        Column("PODS", lambda job: job["scheduled"], lambda job: f"{job['scheduled']}/{job['pods']}"),
        field("MIN", "minAvailable"),
        field("AGE", "ageSeconds", text=_span),
        field("WAIT", "waitSeconds", text=_span),
        field("RUNNING", "running", wide=True),
        field("SUCCEEDED", "succeeded", wide=True),
        field("FAILED", "failed", wide=True),
        field("RETRIES", "retries", wide=True),
        field("JOB PHASE", "jobPhase", wide=True),
        field("PODGROUP", "podGroup", wide=True),
        field("REASON", "reason"),
    ),
    lambda job: f"{job['resource']}/{job['name']}",
    needs=("podgroups",),
)


def read_jobs(found: LoadedCluster) -> list[dict[str, Any]]:
    """The items of `job list`."""
    from capcard_sched.insight.diagnosis.lists import job_items

    return job_items(found.core, found.objects, found.now, found.headlines.read(found.now) if found.headlines else {})


@app.command(name="list", usage="capcard-sched job list [OPTIONS] [NAMES...]")
def list_jobs(
    *names: str,
    scheduler: Annotated[str, Parameter(name=["--scheduler", "-S"], show_default=False, metavar="NAME")] = "",
    expected_start: Annotated[bool, Parameter(negative=())] = False,
    history: HistoryFlag = (),
    ledger: LedgerFlag = "",
    flags: NamespacedListFlags = NamespacedListFlags(),  # noqa: B008 - frozen
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List jobs: Jobs, Deployments and other workloads, with queue, phase, pods, and the cause of those that wait.

    PODS are scheduled and wanted pods; WAIT is the time until MIN of them were scheduled, or until now. REASON is the
    first line of `explain`. KIND is vcjob for Jobs of batch.volcano.sh, job for those of batch.

    With -f, runs the manifests through the simulator first. Without -f, reads a live cluster; writes nothing.

    Exit status: 0; 2 on bad input or an unknown job; 1 on an internal error.

    Args:
        names: Jobs to list. Default: all.
        scheduler: Jobs with this schedulerName only.
        expected_start: Also estimate when waiting jobs start (docs/expected-start.md).
        history: Recording of `run --record` with durations of like jobs, for --expected-start. Repeatable.
        ledger: Database with durations of like jobs, for --expected-start: a file, or
            postgresql://USER@HOST:PORT/NAME.
        flags: Flags of every list.
        source: Flags that select the cluster.
    """

    def read(found: LoadedCluster) -> list[dict[str, Any]]:
        items = [item for item in read_jobs(found) if not scheduler or item["scheduler"] == scheduler]
        return with_expected_starts(found, items, runs, ledger) if expected_start else items

    if expected_start and flags.watch:
        return usage_error("--expected-start: not with --watch")
    if (history or ledger) and not expected_start:
        return usage_error(f"--{'history' if history else 'ledger'}: only with --expected-start")
    try:
        check_history(history, ledger, source.recording)
        runs = read_history(history)
    except BadInputError as error:
        return usage_error(str(error))
    columns = (*LISTING.columns[:-1], *START_COLUMNS, LISTING.columns[-1])
    listing = LISTING._replace(columns=columns) if expected_start else LISTING
    return show_list(listing, read, flags, source, names)


app.command(object_show(_OBJECT, "Show one Job."), name="get")


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

    return change_object(live, "run", "Job", job["metadata"]["name"], lambda objects: objects.create(job))


def _job_of(path: str) -> dict[str, Any] | int:
    """The Job of a manifest, or the exit status of an error."""
    from capcard_sched.simulation.manifests import ManifestError, read_manifests

    try:
        documents = [document.value for document in read_manifests([path], sys.stdin)]
    except ManifestError as error:
        return usage_error(str(error))
    if len(documents) != 1 or kind_of(documents[0]) != "Job" or not (documents[0].get("metadata") or {}).get("name"):
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


app.command(object_change("Job", "suspend", "Abort a Job; it can be resumed.", "AbortJob"), name="suspend")
app.command(object_change("Job", "resume", "Resume a suspended Job.", "ResumeJob"), name="resume")
app.command(object_change("Job", "delete", "Delete a Job and its pods."), name="delete")
