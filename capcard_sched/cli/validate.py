"""`capcard-sched validate`: checks manifests and scheduler-confs before they reach a cluster."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from cyclopts import Parameter

from capcard_sched.admission.manifests import FileView
from capcard_sched.cli.exit_codes import BAD_INPUT, usage_error
from capcard_sched.cli.files import Files
from capcard_sched.cli.output import put_json
from capcard_sched.framework.api.place_limits import SELECTED_NODES, SHARED_DEVICES
from capcard_sched.framework.conf.registry import Registry, RegistryError
from capcard_sched.framework.conf.scheduler_conf import default_conf, parse_conf
from capcard_sched.insight.sources.claim_checks import check_claims, device_cards
from capcard_sched.insight.sources.discovery_checks import check_discovery
from capcard_sched.insight.trials.impossible import AdmittedWorkloads, ImpossibleWorkload
from capcard_sched.model.annotations import DEVICE_CONFIG_KEY
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import no_card_quota
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.quoting import escaped, plural
from capcard_sched.plugins.deviceshare.device_checks import BEYOND_NODES, check_devices
from capcard_sched.plugins.deviceshare.device_config import DEFAULT_CONFIG, read_device_config
from capcard_sched.simulation.kinds import SCENARIO, is_namespaced
from capcard_sched.simulation.manifests import (
    ManifestDocument,
    ManifestError,
    is_list,
    items_of,
    read_file,
    read_manifests,
)
from capcard_sched.simulation.scenario import Origin
from capcard_sched.simulation.scenario_reader import read_scenario
from capcard_sched.validation.checks import Severity
from capcard_sched.validation.hint_checks import QuotaPlugins
from capcard_sched.validation.inventory import BUILT_IN_QUEUES
from capcard_sched.validation.object_checks import BUILT_IN_PLUGINS, NO_NODE_MATCHES, check_objects
from capcard_sched.validation.unknown_fields import unknown_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.simulation.scenario import InputProblem, Scenario

#: Kind to the field that states its minimum.
_FIELDS: Final = {"Job": "spec.minAvailable", "PodGroup": "spec.minResources"}
#: The limit of a workload that no node holds, to the beginnings of warnings about the request that exceeds all nodes.
_NO_PLACE: Final = {
    SELECTED_NODES.format(limit=0): NO_NODE_MATCHES,
    SHARED_DEVICES.format(limit=0): (BEYOND_NODES,),
}
#: Switches of hooks that one action alone calls.
_CALLERS: Final = {"enablePreemptable": "preempt", "enableReclaimable": "reclaim"}
#: Ends of the fields whose errors depend on the other objects at one time.
_OF_ANOTHER_TIME: Final = ("globalDefault", ".adminAccess")
_CONF_KEYS = frozenset({"actions", "tiers", "configurations"})


class FindingRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding with its location, as printed by `-o json`."""

    severity: Severity
    message: str
    file: str = ""
    #: Counted from 1 inside the file; 0 when the finding is about more than one document.
    document: int = 0
    #: Kind and name.
    object: str = ""
    field: str = ""
    accepted: str = ""


class _CheckedObject(NamedTuple):
    document: ManifestDocument
    #: Path inside the document: "" or `items[3]` or `spec.operations[2].create`.
    place: str
    value: dict[str, Any]

    @property
    def key(self) -> tuple[str, str, str] | None:
        """Kind, namespace and name as in the simulator; None for a malformed object."""
        metadata, names = self.value.get("metadata"), (self.value.get("kind"), self.value.get("apiVersion"))
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not all(isinstance(one, str) and one for one in (*names, name)):
            return None
        kind = kind_of(self.value)
        return kind, str(metadata.get("namespace") or "default") if is_namespaced(kind) else "", str(name)

    def row(self, severity: Severity, field: str, message: str, accepted: str = "") -> FindingRow:
        metadata = self.value.get("metadata")
        name = metadata.get("name", "(no name)") if isinstance(metadata, dict) else "(no name)"
        field = ".".join(filter(None, (self.place, field)))
        return FindingRow(
            severity,
            message,
            self.document.source,
            self.document.number,
            f"{self.value.get('kind', 'object')} {name}",
            field,
            accepted,
        )


def validate(
    *,
    file: Files = (),
    scheduler_conf: Path | None = None,
    plugins_dir: Path | None = None,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table",
) -> int:
    """Check manifests and scheduler-confs; report each problem with its location and the accepted form.

    Checks queues, nodes, jobs and pods for their fields and card annotations, alone and against each other: a card
    without quota in the job's queue, a quota above the cards of the cluster, device resources without a card label, a
    minimum above a limit of its queue under the scheduler-conf (the built-in one by default).
    Detects a scheduler-conf by its content, also inside a ConfigMap. Exit status: 2 on errors, else 0.

    Args:
        file: File, folder or `-` for standard input, YAML or JSON. Repeatable.
        scheduler_conf: Scheduler-conf file to check.
        plugins_dir: Folder with additional plugins and actions that the scheduler-conf may name.
        output: Output format.
    """
    if not file and scheduler_conf is None:
        return usage_error("nothing to check: pass -f FILE or --scheduler-conf FILE")
    try:
        checker = Checker(Registry.load(plugins_dir))
    except RegistryError as error:
        return usage_error(str(error))
    for name in file:
        checker.read(name)
    if scheduler_conf is not None:
        checker.read_conf(scheduler_conf)
    checker.check()
    counts = Counter(row.severity for row in checker.rows)
    if output == "json":
        summary = {"objects": len(checker.objects), "schedulerConfs": checker.confs}
        findings = msgspec.to_builtins(checker.rows)
        put_json(json.dumps({**summary, "errors": counts["error"], "findings": findings}, indent=2, ensure_ascii=False))
    else:
        _print_table(checker, counts)
    return BAD_INPUT if counts["error"] else 0


class Checker:
    """Reads all input first, then checks it: some checks compare objects with each other."""

    def __init__(self, registry: Registry) -> None:
        self.rows: list[FindingRow] = []
        self.objects: list[_CheckedObject] = []
        self.confs = 0
        #: Those in files, not in ConfigMaps.
        self.conf_files = 0
        #: The last valid ConfigMap of a device plugin.
        self._device_config = DEFAULT_CONFIG
        #: The valid scheduler-confs of the input.
        self._valid_confs: list[Conf] = []
        self._registry = registry
        #: Documents for the simulator's loader.
        self._documents: list[ManifestDocument] = []

    def read(self, name: str) -> None:
        """Read one `-f` argument."""
        standard_input = sys.stdin.buffer.read() if name == "-" else b""
        try:
            documents = list(read_manifests([name], io.BytesIO(standard_input)))
        except ManifestError as error:
            self.rows.append(FindingRow("error", error.problem, error.source, error.number))
            return
        confs = {document.source for document in documents if _is_conf(document.value)}
        for source in sorted(confs):
            text = standard_input if source == "-" else read_file(Path(source))
            self._conf(text, FindingRow("error", "", file=source, document=1))
        documents = [document for document in documents if document.source not in confs]
        self._documents += documents

    def read_objects(self, objects: Sequence[dict[str, Any]], source: str) -> None:
        """Read objects of a cluster; findings have `source` in place of a file."""
        value = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self._documents.append(ManifestDocument(source, 1, value))

    def read_conf(self, path: Path) -> None:
        """Read the file of `--scheduler-conf`."""
        try:
            text = read_file(path)
        except OSError as error:
            self.rows.append(FindingRow("error", error.strerror or str(error), file=str(path)))
            return
        self._conf(text, FindingRow("error", "", file=str(path), document=1))

    def check(self) -> None:
        """Check all input."""
        scenario, problems = read_scenario((), existing_queues=BUILT_IN_QUEUES, documents=self._documents)
        for document in self._documents:  # with the names that the scenario reader generated
            self.objects += _objects(document, "", document.value)
        if problems:
            self._structure("error", problems)
        else:
            self._structure("warning", scenario.warnings)
        for obj in self.objects:
            self._config_map(obj)
        values = [obj.value for obj in self.objects]
        names = self._device_config.resources
        shares = (names.number, names.memory, names.cores)
        plugins = self._quota_plugins()
        is_known = not self.confs or bool(self._valid_confs)  # an invalid scheduler-conf has its own findings
        findings = check_objects(values, plugins, shares, device_cards(values), is_conf_known=is_known)
        is_enabled = "deviceshare" in plugins.names or not is_known
        devices = check_devices(values, self._device_config, is_enabled=is_enabled)
        unknown = ((index, finding) for index, value in enumerate(values) for finding in unknown_fields(value))
        claims = check_claims(values, card_quotas="capacity-card" in plugins.names)
        discovery = check_discovery(values)
        has_operations = any("operations[" in obj.place for obj in self.objects)
        for index, finding in (*unknown, *findings, *devices, *claims, *discovery):
            if index >= 0:
                of, severity = self.objects[index], finding.severity
                if has_operations and finding.field.endswith(_OF_ANOTHER_TIME):
                    severity = "warning"  # an operation may change what it contradicts
                row = of.row(severity, finding.field, finding.message, finding.accepted)
            else:
                row = FindingRow(finding.severity, finding.message, field=finding.field, accepted=finding.accepted)
            self.rows.append(row)
        self._rejected(problems)
        self._impossible(scenario)

    def _rejected(self, problems: Sequence[InputProblem]) -> None:
        """Errors for what webhooks and API servers reject: the first one per field, of objects that could be read."""
        invalid = {(each.origin.source, each.origin.number, each.origin.place) for each in problems}
        known = {
            (row.file, row.document, row.object, _plain(row.field)) for row in self.rows if row.severity == "error"
        }
        view = FileView([obj.value for obj in self.objects])
        for obj in self.objects:
            if (obj.document.source, obj.document.number, obj.place) in invalid:
                continue
            for finding in view.check(obj.value):
                row = obj.row(finding.severity, finding.field, finding.message, finding.accepted)
                if row.severity == "error":
                    self.rows = [one for one in self.rows if not _is_part_of(one, row)]
                if row.severity != "error" or (row.file, row.document, row.object, _plain(row.field)) not in known:
                    self.rows.append(row)

    def _quota_plugins(self) -> QuotaPlugins:
        """Those of all valid scheduler-confs of the input, else those of the built-in one."""
        found = [conf.quota_plugins for conf in self._valid_confs] or [BUILT_IN_PLUGINS]
        names = frozenset(name for one in found for name in one.names)
        unnamed, labels = {one.unnamed_cards for one in found}, {one.card_labels for one in found}
        return QuotaPlugins(
            names,
            any(one.is_tree for one in found),
            unnamed_cards=unnamed.pop() if len(unnamed) == 1 else "",
            unlimited_cards=all(one.unlimited_cards for one in found),
            device_counts=any(one.device_counts for one in found),
            device_capacities=any(one.device_capacities for one in found),
            allocates_claims=any(one.allocates_claims for one in found),
            card_labels=labels.pop() if len(labels) == 1 else DEFAULT_CARD_LABELS,
        )

    def _impossible(self, scenario: Scenario) -> None:
        """Errors for workloads whose minimum exceeds a limit of their queue, or the nodes, under a conf."""
        places: dict[tuple[str, str, str], _CheckedObject] = {}
        for obj in self.objects:
            if (key := obj.key) is not None:
                places.setdefault(key, obj)
        found: dict[tuple[str, str, str], ImpossibleWorkload] = {}
        workloads = AdmittedWorkloads(scenario, self._quota_plugins())
        for conf in self._valid_confs or [default_conf(self._registry)]:
            for workload in workloads.impossible(conf, self._registry):
                found.setdefault((workload.kind, workload.namespace, workload.name), workload)
        for key, workload in found.items():
            if key in places:
                begins = _NO_PLACE.get(workload.exceeded.places)
                if begins is not None and self._raised(places[key], begins):
                    continue
                message, cause = _never_text(workload)
                detail, accepted = self._replaced(places[key], cause)
                self.rows.append(places[key].row("error", _FIELDS.get(key[0], "spec"), message + detail, accepted))

    def _replaced(self, obj: _CheckedObject, cause: str) -> tuple[str, str]:
        """The details and the accepted form of the warnings about an object with a cause, which an error replaces."""
        found = [row for row in self.rows if self._is_about(row, obj, (cause,))]
        self.rows = [row for row in self.rows if row not in found]
        return (found[0].message.removeprefix(cause), found[0].accepted) if found else ("", "")

    @staticmethod
    def _is_about(row: FindingRow, obj: _CheckedObject, begins: tuple[str, ...]) -> bool:
        """Whether a row is a warning about an object, and its text begins with one of `begins`."""
        own = obj.row("warning", "", "")
        return (row.file, row.document, row.object, row.severity) == (
            own.file, own.document, own.object, own.severity
        ) and row.message.startswith(begins)  # fmt: skip

    def _raised(self, obj: _CheckedObject, begins: tuple[str, ...]) -> bool:
        """Raises the warnings about an object whose text begins with one of `begins` to errors; False without one."""
        is_found = False
        for index, row in enumerate(self.rows):
            if self._is_about(row, obj, begins):
                message = f"can never start: {row.message}"
                self.rows[index], is_found = msgspec.structs.replace(row, severity="error", message=message), True
        return is_found

    def _structure(self, severity: Severity, problems: Sequence[InputProblem]) -> None:
        """Add the loader's findings: the first one per field."""
        found: dict[tuple[str, int, str, str], FindingRow] = {}
        for number, problem in enumerate(problems):
            origin = problem.origin
            if origin.holder:  # the row is about the Scenario
                obj, field, message = origin.holder, origin.place, str(problem._replace(origin=Origin("", 0)))
            else:
                obj, message = problem.object, problem.message
                field = ".".join(filter(None, (origin.place, problem.field)))
            row = FindingRow(severity, message, origin.source, origin.number, obj, field)
            found.setdefault((row.file, row.document, row.object, row.field or str(number)), row)
        self.rows += found.values()

    def _config_map(self, obj: _CheckedObject) -> None:
        if obj.value.get("kind") != "ConfigMap" or not isinstance(obj.value.get("data"), dict):
            return
        for key, text in obj.value["data"].items():
            if key == DEVICE_CONFIG_KEY and isinstance(text, str):
                found = read_device_config(text)
                if found.problem:
                    self.rows.append(obj.row("error", f'data["{key}"]', found.problem))
                else:
                    self._device_config = found.config
                for name in found.unknown:
                    self.rows.append(obj.row("warning", f'data["{key}"].nvidia.{name}', "unknown key"))
            if isinstance(text, str) and any(re.search(rf"^{word}\s*:", text, re.MULTILINE) for word in _CONF_KEYS):
                self._conf(text, obj.row("error", f'data["{key}"]', ""))

    def _switch_notes(self, conf: Conf, place: FindingRow) -> None:
        """Notes about switches of plugins that are off, where an action calls their hooks."""
        for option in (option for tier in conf.tiers for option in tier):
            plugin = self._registry.plugin(option.name)
            for switch, note in plugin.switch_notes.items() if plugin is not None else ():
                if not option.switches[switch] and _CALLERS.get(switch, "") in ("", *conf.actions):
                    field = ".".join(filter(None, (place.field, f"plugin {option.name}", switch)))
                    obj = place.object or "scheduler-conf"
                    self.rows.append(FindingRow("note", note, place.file, place.document, obj, field))

    def _conf(self, text: str | bytes, place: FindingRow) -> None:
        self.confs += 1
        self.conf_files += not place.object
        result = parse_conf(text, registry=self._registry)
        if result.conf is not None:
            self._valid_confs.append(result.conf)
            self._switch_notes(result.conf, place)
        for problem in result.problems:
            field = ".".join(filter(None, (place.field, problem.path)))
            line = f" (line {problem.line})" if problem.line else ""
            message = "; ".join(filter(None, (problem.message, problem.hint)))
            row = FindingRow(
                problem.severity,
                message,
                place.file,
                place.document,
                place.object or "scheduler-conf",
                f"{field}{line}".strip(),
                problem.accepted,
            )
            self.rows.append(row)


def _never_text(workload: ImpossibleWorkload) -> tuple[str, str]:
    """The message about a workload that can never start, and the cause in warnings that the message replaces."""
    figures, owner = workload.exceeded.figures, workload.exceeded.queue
    name, above = figures.resource, "" if owner == workload.queue else f", ancestor of queue {workload.queue}"
    needed, limit = format_amount(name, figures.requested), format_amount(name, figures.limit)
    cause = f"queue {owner} has no quota for card {name}"
    if workload.resource_quota:
        quota = f"ResourceQuota {workload.resource_quota} of namespace {workload.namespace}"
        return f"can never start: needs {needed} {name}, and {quota} allows {limit}", cause
    if workload.exceeded.places:
        return workload.exceeded.text("").partition(";")[0], cause  # no session reserves anything here
    if not owner:
        pods = f"{plural(figures.requested, 'pod')} with {name}"
        return f"can never start: needs {pods}, and the nodes of the input have space for {figures.limit}", cause
    if not figures.limit and workload.has_no_quota:
        cause = no_card_quota(owner)
        return f"can never start: {cause}, and it needs {needed} x {name}", cause
    if not figures.limit and not above:
        return f"can never start: queue {owner} has no quota for {name} (needs {needed})", cause
    return f"can never start: needs {needed}, quota is {limit} ({name} of queue {owner}{above})", cause


def _is_part_of(warning: FindingRow, error: FindingRow) -> bool:
    """Whether a warning is about the cause of an error, whose message it repeats."""
    one, other = ((row.file, row.document, row.object, row.field) for row in (warning, error))
    return warning.severity == "warning" and one == other and error.message in warning.message


def _plain(field: str) -> str:
    """A path with its plain keys outside of brackets, one form for all checks."""
    return re.sub(r'\["([A-Za-z0-9_-]+)"\]', r".\1", field)


def _is_conf(value: Any) -> bool:
    return (
        isinstance(value, dict) and "kind" not in value and "apiVersion" not in value and bool(_CONF_KEYS & set(value))
    )


def _objects(document: ManifestDocument, place: str, value: Any) -> Iterator[_CheckedObject]:
    """The objects of one document, including items of a List and objects that a Scenario creates."""
    if not isinstance(value, dict):
        return
    spec = value.get("spec")
    if is_list(value):
        for step, item in items_of(value) if isinstance(value.get("items"), list) else ():
            yield from _objects(document, _inside(place, step), item)
    elif value.get("kind") == SCENARIO and isinstance(spec, dict) and isinstance(spec.get("operations"), list):
        for index, operation in enumerate(spec["operations"]):
            if isinstance(operation, dict):
                created = _inside(place, f"spec.operations[{index}].create")
                yield from _objects(document, created, operation.get("create"))
    else:
        yield _CheckedObject(document, place, value)


def _inside(place: str, step: str) -> str:
    return f"{place}.{step}" if place else step


def _print_table(checker: Checker, counts: Counter[Severity]) -> None:
    from rich.text import Text

    from capcard_sched.reports.terminal import EscapingConsole

    console = EscapingConsole(soft_wrap=True)
    styles: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
    ranked = sorted(checker.rows, key=lambda row: list(styles).index(row.severity))
    for row in ranked:
        number = f", document {row.document}" if row.document else ""
        place = escaped(": ".join(filter(None, (f"{row.file}{number}" if row.file else "", row.object))))
        place = place or "all files together"
        console.print(Text.assemble((f"{row.severity:<9}", styles[row.severity]), (place, "bold")))
        console.print(Text(" " * 9 + escaped(": ".join(filter(None, (row.field, row.message))))))
        if row.accepted:
            console.print(Text(f"{'':9}accepted: {escaped(row.accepted)}", "dim"))
    found = [plural(counts[word], word) for word in styles if counts[word]]
    confs = f" and {plural(checker.confs, 'scheduler-conf')}" if checker.confs else ""
    console.print(f"checked {plural(len(checker.objects), 'object')}{confs}: {', '.join(found) or 'no problems found'}")
