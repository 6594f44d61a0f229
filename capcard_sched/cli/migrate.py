"""`capcard-sched migrate`: what changes for the objects of a cluster with Volcano."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import cyclopts
import msgspec
from cyclopts import Parameter

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.files import Files
from capcard_sched.cli.live_objects import AbsentError, Live, LiveObjects, with_objects
from capcard_sched.cli.output import put, put_json
from capcard_sched.cli.validate import Checker, FindingRow
from capcard_sched.framework.conf.registry import Registry, RegistryError
from capcard_sched.model.kinds import group_of
from capcard_sched.model.quoting import escaped, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Exit status: an object behaves in another way than under Volcano.
DIFFERS: Final = 3
#: same: as under Volcano; ignored: a field has no effect; differs: the object behaves in another way.
Verdict: TypeAlias = Literal["same", "ignored", "differs"]
_RANK: Final[dict[Verdict, int]] = {"same": 0, "ignored": 1, "differs": 2}

app = cyclopts.App(name="migrate", help="Compare with Volcano.", result_action="return_value")

_DISCOVERY_RULING: Final = "hyper-nodes-from-labels"
_FLAGS: Final = "flags.md"
#: Findings of `validate` by their text: the verdict, and the ruling (an anchor of docs/rulings.md). The first that
#: matches counts; an error without a row differs, and another finding is no difference.
_RULES: Final[tuple[tuple[str, Verdict, str], ...]] = (
    (r"no card quota", "differs", "queues-without-card-quota"),
    (r"has no quota for|quota of .* has no effect", "differs", "unlisted-card-is-zero"),
    (r"card quotas of the queue are 0", "differs", "malformed-quota-is-zero"),
    (r"can never start: needs .* pods|can never start: needs .* nodes", "differs", "larger-than-the-nodes"),
    (r"can never start", "differs", "impossible-reserves-nothing"),
    (r"is not the name of a Job|not the name of a pod of the Job", "differs", "names-of-jobs"),
    (r"is executed by action", "differs", "gang-actions"),
    (r"is evicted as a unit", "differs", "gangs-evicted-whole"),
    (r"is hard without a tier", "differs", "hard-without-a-tier"),
    (
        r"no controller (discovers HyperNodes|updates it)|is not supported; accepted: label",
        "differs",
        _DISCOVERY_RULING,
    ),
    (r"by the discovery|of the discovery|network topology types", "differs", _DISCOVERY_RULING),
    (r"admits no devices of the class", "differs", "device-quotas"),
    (r"which this scheduler does not remove", "differs", "queue-allocation-gate"),
    (r"never bound|its pods wait", "differs", "unsupported-features"),
    (r"job plugin|argument .*--", "differs", "job-plugin-arguments"),
    (r"the job waits with QueueNotFound", "differs", "missing-queue-or-group"),
    (r"unknown (plugin|action)", "differs", "unknown-keys-warn"),
    (r"has no effect: victims are searched for", "ignored", "gang-actions"),
    (r"unknown field|unknown key", "ignored", "unknown-fields-are-named"),
    (r"no effect|is ignored|not supported|not enforced", "ignored", ""),
    (r"is not among|does not exist", "same", "missing-queue-or-group"),
)
_ONE_SUBGROUP: Final = "absent: the policy is one subgroup; in Volcano it selects no pod"
#: Place of an item of a list, or of an operation.
_ITEM: Final = re.compile(r"((?:items\[\d+\]|spec\.operations\[\d+\]\.\w+))(?=\.|$)")
_NO_CONTROLLER: Final = "no controller of capcard-sched serves this kind: its objects stay as they are"
#: Kinds of Volcano without a counterpart, by API group and kind, with their resource.
_FOREIGN: Final = {
    ("flow.volcano.sh", "JobFlow"): "flow.volcano.sh/v1alpha1/jobflows",
    ("flow.volcano.sh", "JobTemplate"): "flow.volcano.sh/v1alpha1/jobtemplates",
    ("training.volcano.sh", "HyperJob"): "training.volcano.sh/v1alpha1/hyperjobs",
    ("shard.volcano.sh", "NodeShard"): "shard.volcano.sh/v1alpha1/nodeshards",
    ("config.volcano.sh", "ColocationConfiguration"): "config.volcano.sh/v1alpha1/colocationconfigurations",
}
#: Kinds that `check` reads of a live cluster.
_READ: Final = (
    *("Queue", "NamespaceQueue", "PriorityClass", "Node", "HyperNode", "Numatopology", "PodGroup", "Job", "CronJob"),
)


#: End of the name of the Deployment of Volcano's controllers.
_CONTROLLERS: Final = "-controllers"
#: End of the names of its ConfigMaps.
_CONFIGURATION: Final = "-configmap"


class MigrationReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an object has its verdict."""

    verdict: Verdict
    message: str
    field: str = ""
    #: An anchor of docs/rulings.md, or another page of docs.
    ruling: str = ""


class MigrationRow(NamedTuple):
    """One object."""

    verdict: Verdict
    object: str
    place: str
    reasons: tuple[MigrationReason, ...]


@app.command
def check(
    *,
    file: Files = (),
    scheduler_conf: Path | None = None,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table",
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """Compare each object of a cluster with its behavior under Volcano: same, ignored or differs, with the ruling.

    Reads files, or else the cluster: queues, PodGroups, Jobs, CronJobs, HyperNodes, the kinds of Volcano that
    capcard-sched does not have, the arguments of Volcano's Deployments, and their ConfigMaps. The findings are those of
    `validate`. Exit status: 3 when an object differs, 2 for invalid input or missing rights, else 0.

    Args:
        file: File, folder or `-` for standard input, YAML or JSON. Repeatable. Without it a live cluster is read.
        scheduler_conf: Scheduler-conf file of Volcano to compare.
        output: Output format.
        live: The cluster.
    """
    try:
        checker = Checker(Registry.load(None))
    except RegistryError as error:
        return usage_error(str(error))
    for name in file:
        checker.read(name)
    if not file:
        found = with_objects(live, _live_objects)
        if isinstance(found, int):
            return found
        checker.read_objects(found, "cluster")
    if scheduler_conf is not None:
        checker.read_conf(scheduler_conf)
    unread = [row for row in checker.rows if row.severity == "error" and not row.object]
    if unread:
        return usage_error("\n".join(f"{row.file}: {row.message}" for row in unread))
    checker.check()
    rows = _rows(checker)
    if output == "json":
        put_json(json.dumps({"objects": [_as_json(row) for row in rows]}, indent=2, ensure_ascii=False))
    else:
        _print(rows)
    return DIFFERS if any(row.verdict == "differs" for row in rows) else 0


async def _live_objects(objects: LiveObjects) -> list[dict[str, Any]]:
    from capcard_sched.cli.volcano_flags import serves_volcano  # the options of all services

    found: list[dict[str, Any]] = []
    for kind in _READ:
        try:
            found += await objects.list(kind)
        except AbsentError:
            if kind in ("Queue", "PodGroup"):
                raise
    deployments = [each for each in await _items(objects, "apps/v1/deployments", "Deployment") if serves_volcano(each)]
    found += deployments
    for namespace, name in sorted({each for deployment in deployments for each in _config_maps(deployment)}):
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        content = await objects.read_optional(path)
        found += [] if content is None else [content]
    for (_, kind), resource in _FOREIGN.items():
        found += await _items(objects, resource, kind)
    return found


async def _items(objects: LiveObjects, resource: str, kind: str) -> list[dict[str, Any]]:
    """The objects of a resource such as `apps/v1/deployments`; none where it is not served."""
    typed = {"apiVersion": resource.rpartition("/")[0], "kind": kind}
    page = await objects.read_optional(f"/apis/{resource}") or {}
    return [{**typed, **item} for item in page.get("items") or ()]


def _config_maps(deployment: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Namespace and name of each ConfigMap that a Deployment of Volcano mounts, or that its controllers read."""
    name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    for volume in deployment["spec"]["template"]["spec"].get("volumes") or ():
        mounted = (volume.get("configMap") or {}).get("name") or ""
        if mounted.endswith(_CONFIGURATION):  # others, as of certificates, configure nothing that is compared
            yield namespace, mounted
    if name.endswith(_CONTROLLERS):
        yield namespace, f"{name.removesuffix(_CONTROLLERS)}-controller-configmap"


def _rows(checker: Checker) -> list[MigrationRow]:
    """One row per object, and one for the scheduler-conf and for findings about several objects where there are any."""
    reasons: dict[tuple[str, str], list[MigrationReason]] = {}
    known: dict[tuple[str, int, str], tuple[str, str]] = {}
    for number, obj in enumerate(checker.objects):
        row = obj.row("note", "", "")
        head = group_of(str(obj.value.get("apiVersion") or "")), str(obj.value.get("kind") or "")
        name = _name(obj.value, row.object)
        key = (name, _place(row)) if (name, _place(row)) not in reasons else (name, f"{_place(row)}#{number}")
        known[row.file, row.document, obj.place] = key
        of = reasons.setdefault(key, [])
        if head in _FOREIGN:
            of.append(MigrationReason("differs", _NO_CONTROLLER))
        if head == ("scheduling.volcano.sh", "PodGroup"):
            of += _policies(obj.value)
        if head == ("apps", "Deployment"):
            of += _flags(obj.value)
    for row in checker.rows:
        if not row.object and "not a kind of the scheduler" in row.message:
            continue
        item = _ITEM.match(row.field)
        at = item.group(1) if item is not None else ""
        found = known.get((row.file, row.document, at)) if row.document else None
        of = reasons.setdefault(found or (row.object or "all objects together", _place(row)), [])
        reason = _reason(row if found is None else msgspec.structs.replace(row, field=row.field[len(at) :].lstrip(".")))
        if reason not in of:
            of.append(reason)
    if checker.conf_files and not any(name == "scheduler-conf" for name, _ in reasons):
        reasons["scheduler-conf", ""] = []
    rows = [
        MigrationRow(max((one.verdict for one in of), key=_rank, default="same"), name, place, tuple(of))
        for (name, place), of in reasons.items()
    ]
    return sorted(rows, key=lambda row: -_RANK[row.verdict])


def _name(obj: dict[str, Any], short: str) -> str:
    """Kind and name, with the namespace that an object has."""
    kind, _, name = short.partition(" ")
    metadata = obj.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else ""
    return f"{kind} {namespace}/{name}" if isinstance(namespace, str) and namespace else short


def _policies(group: dict[str, Any]) -> Iterator[MigrationReason]:
    """The policies of subgroups that select no pod under Volcano."""
    spec = group.get("spec")
    policies = spec.get("subGroupPolicy") if isinstance(spec, dict) else None
    for index, policy in enumerate(policies if isinstance(policies, list) else ()):
        if isinstance(policy, dict) and not policy.get("matchLabelKeys"):
            place = f"spec.subGroupPolicy[{index}].matchLabelKeys"
            yield MigrationReason("differs", _ONE_SUBGROUP, place, "subgroups-are-whole")


def _flags(deployment: dict[str, Any]) -> Iterator[MigrationReason]:
    """The arguments of a Deployment of Volcano."""
    from capcard_sched.cli.volcano_flags import flag_findings  # the options of all services

    for found in flag_findings(deployment):
        yield MigrationReason(found.verdict, found.message, found.place, _FLAGS)


def _rank(verdict: Verdict) -> int:
    return _RANK[verdict]


def _place(row: FindingRow) -> str:
    document = f", document {row.document}" if row.document else ""
    return f"{row.file}{document}" if row.file not in ("", "cluster") else ""


def _reason(row: FindingRow) -> MigrationReason:
    for pattern, verdict, ruling in _RULES:
        if re.search(pattern, row.message):
            return MigrationReason(verdict, row.message, row.field, ruling)
    return MigrationReason("differs" if row.severity == "error" else "same", row.message, row.field)


def _as_json(row: MigrationRow) -> dict[str, Any]:
    reasons = [msgspec.to_builtins(reason) for reason in row.reasons]
    return {"verdict": row.verdict, "object": row.object, "place": row.place, "reasons": reasons}


def _print(rows: Iterable[MigrationRow]) -> None:
    counts = Counter[str]()
    for row in rows:
        counts[row.verdict] += 1
        if row.reasons:
            put(f"{row.verdict:<8} {escaped(': '.join(filter(None, (row.place, row.object))))}")
        for reason in row.reasons:
            page = reason.ruling if reason.ruling.endswith(".md") else f"rulings.md#{reason.ruling}"
            ruling = f" [docs/{page}]" if reason.ruling else ""
            put(f"{'':9}{escaped(': '.join(filter(None, (reason.field, reason.message))))}{ruling}")
    total = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("same", "ignored", "differs"))
    put(f"compared {plural(sum(counts.values()), 'object')}: {total}")
