"""Reads a scenario from manifests and checks it before the simulation starts."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.controllers.objects import (
    COMMAND,
    EVENT,
    JOB,
    POD,
    POD_GROUP,
    QUEUE,
    REPLICA_SET,
    JsonObject,
    annotations_of,
    labels_of,
)
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.kinds import KIND_BY_NAME, RESOURCE_API, group_of, is_native, kind_of
from capcard_sched.model.kube_groups import KUBE_API
from capcard_sched.model.provisioning import POD_TEMPLATE, PROVISIONING_REQUEST
from capcard_sched.model.quoting import plural, shown
from capcard_sched.model.timestamps import SPAN_FORM, DurationError, parse_span
from capcard_sched.simulation.former_versions import V1BETA1, read_former_versions
from capcard_sched.simulation.generated_names import generate_names
from capcard_sched.simulation.kinds import (
    NAMESPACE,
    SCENARIO,
    SIMULATION_API,
    is_known,
    is_namespaced,
    is_of_operator,
)
from capcard_sched.simulation.manifests import ManifestDocument, ManifestError, is_list, items_of, read_manifests
from capcard_sched.simulation.scenario import (
    VERBS,
    Entry,
    InputError,
    InputProblem,
    Operation,
    Origin,
    Scenario,
    Verb,
    in_creation_order,
)
from capcard_sched.simulation.store import display_name
from capcard_sched.validation.checks import Finding, Spelling, check_card_quota
from capcard_sched.validation.inventory import as_map
from capcard_sched.validation.job_plugins import check_job_plugins
from capcard_sched.validation.misplaced import check_annotation_places
from capcard_sched.validation.structure import check_fields, check_name, check_object, with_text_quantities
from capcard_sched.validation.templates import templates_of
from capcard_sched.validation.unknown_fields import unknown_fields
from capcard_sched.validation.unsupported_fields import unsupported_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Kinds that controllers and the scheduler create and delete: whether one exists is only known during the run.
_GENERATED = frozenset({POD, POD_GROUP, REPLICA_SET, EVENT, POD_TEMPLATE, PROVISIONING_REQUEST})
#: Kinds that may be deleted during the run: also a Command once executed, and a Job after its TTL.
_PASSING = _GENERATED | {COMMAND, JOB}
_NO_OPERATOR = "has no pods here: its operator is not simulated; only its pods in the input are scheduled"
#: Conditions of objects of operators that have finished.
_ENDED = ("Complete", "Completed", "Failed", "Succeeded")
#: Characters of a kind that are compared with those of known kinds.
_LONG_NAME = 63
#: Set by the API server; a patch of them is rejected or ignored there.
_SERVER_SET = ("uid", "creationTimestamp", "deletionTimestamp")


def load_scenario(
    paths: Sequence[str],
    stdin: Any = None,
    existing_queues: Iterable[str] = (),
    documents: Iterable[ManifestDocument] = (),
    *,
    served: bool = False,
) -> Scenario:
    """Read and check everything: `documents`, then files. `existing_queues` are created by the simulator.

    `served`: of a cluster, whose API server has checked its devices and claims. Raises InputError.
    """
    scenario, problems = read_scenario(paths, stdin, existing_queues, documents, served=served)
    if problems:
        raise InputError(problems)
    return scenario


def read_scenario(
    paths: Sequence[str],
    stdin: Any = None,
    existing_queues: Iterable[str] = (),
    documents: Iterable[ManifestDocument] = (),
    *,
    served: bool = False,
) -> tuple[Scenario, list[InputProblem]]:
    """As `load_scenario`; returns the valid objects and operations, and the problems of the others."""
    loader = _ScenarioReader(served)
    found, unreadable = [*documents], []
    try:
        for document in read_manifests(paths, stdin) if paths else ():
            found.append(document)  # noqa: PERF402 - those before an error are kept
    except ManifestError as error:
        unreadable.append(InputProblem(Origin(error.source, error.number), error.problem))
    former = read_former_versions(found)
    generate_names(found)
    for document in found:
        loader.add(document)
    for document, obj in former:
        loader.warn_of_version(Origin(document.source, document.number), obj)
    loader.report_unknown_fields()
    loader.report_operators()
    loader.problems += unreadable
    loader.check_names(existing_queues)
    uids = loader.check_uids()
    entries = in_creation_order(loader.entries)
    operations = sorted(loader.operations, key=lambda operation: operation.at)
    scenario = Scenario(entries, tuple(operations), tuple(loader.warnings), tuple(loader.findings), uids)
    return scenario, loader.problems


class _ScenarioReader:
    def __init__(self, is_served: bool) -> None:
        self._is_served = is_served
        self.entries: list[Entry] = []
        self.operations: list[Operation] = []
        self.problems: list[InputProblem] = []
        self.warnings: list[InputProblem] = []
        self.findings: list[InputProblem] = []
        self._unknown: set[str] = set()
        #: Kind and path, without indices, of unknown fields to the first finding, and the number of other objects.
        self._unknown_fields: dict[tuple[str, str], tuple[InputProblem, int]] = {}

    def add(self, document: ManifestDocument) -> None:
        """One document: an object, a List or a Scenario."""
        self._add_value(Origin(document.source, document.number), document.value)

    def _add_value(self, origin: Origin, value: Any) -> None:
        names = self._names(origin, value)
        if names is None:
            return
        api_version, kind = names
        if is_list(value):
            self._add_list(origin, value)
        elif kind == SCENARIO or api_version.partition("/")[0] == SIMULATION_API.partition("/")[0]:
            self._add_scenario(origin, value, api_version, kind)
        else:
            entry = self._object(origin, value)
            if entry is not None:
                self.entries.append(entry)

    def _names(self, origin: Origin, value: Any) -> tuple[str, str] | None:
        if not isinstance(value, dict):
            self._reject(origin, f"expected an object with apiVersion and kind, got {shown(value)}")
            return None
        found = []
        for field in ("apiVersion", "kind"):
            text = value.get(field)
            if not isinstance(text, str) or not text:
                self._reject(origin, _absent(None if text == "" else text, "a string"), field)
                return None
            found.append(text)
        return found[0], found[1]

    def _add_list(self, origin: Origin, value: JsonObject) -> None:
        items = value.get("items")
        if items is None:
            return
        if not isinstance(items, list):
            self._reject(origin, f"expected a list, got {shown(items)}", "items", value["kind"])
            return
        for place, item in items_of(value):
            self._add_value(origin.inside(place), item)

    def _object(self, origin: Origin, value: JsonObject) -> Entry | None:
        obj = without_nulls(value)
        kind = self._kind(origin, obj)
        if kind is None:
            return None
        problems = list(check_name(obj, is_namespaced(kind)))
        if not (self._is_served and group_of(obj["apiVersion"]) == group_of(RESOURCE_API)):
            problems = problems or list(check_object(kind, obj))
        self._report(origin, obj, problems)
        if not problems and is_native(obj):
            self._check_annotations(origin, obj)
            self._check_unknown_fields(origin, value)
        return None if problems else Entry(kind, with_text_quantities(kind, obj), origin)

    def _check_annotations(self, origin: Origin, obj: JsonObject) -> None:
        """Misspelt and misplaced annotations, fields and Job plugin arguments without effect, malformed card quotas."""
        places = check_annotation_places(obj, list(templates_of(obj)), Spelling())
        findings = [*places, *unsupported_fields(obj)]
        text = annotations_of(obj).get(CARD_QUOTA)
        if kind_of(obj) == QUEUE and isinstance(text, str):
            findings += [one for one in check_card_quota(text) if one.severity == "error"]
        elif kind_of(obj) == JOB:
            for one in check_job_plugins(obj.get("spec") or {}):
                findings.append(msgspec.structs.replace(one, message=f"{one.message}; accepted: {one.accepted}"))
        for finding in findings:
            self.findings.append(InputProblem(origin, finding.message, _title(obj), finding.field))

    def _check_unknown_fields(self, origin: Origin, obj: JsonObject) -> None:
        for key, finding in {_without_indices(each.field): each for each in unknown_fields(obj)}.items():
            of = obj["kind"], key
            problem = InputProblem(origin, finding.message, _title(obj), finding.field)
            first, others = self._unknown_fields.get(of, (problem, -1))
            self._unknown_fields[of] = first, others + 1

    def report_unknown_fields(self) -> None:
        """One warning for each unknown field of a kind: the first, and the number of other objects that have it."""
        for first, others in self._unknown_fields.values():
            more = f" (and {plural(others, 'other object')})" if others else ""
            self.findings.append(first._replace(message=f"{first.message}{more}"))

    def report_operators(self) -> None:
        """One warning for each kind of an operator: the first object without pods in the input, and their number.

        The simulator has no operators, other than the clusters that `validate` checks manifests for. A pod belongs to
        each object of its namespace that owns it, or whose name is the value of one of its labels; a gang without pods
        is explained by its PodGroup, which has the name of the object.
        """
        created = [(one.kind, one.body, one.origin) for one in self.operations if one.verb == "create"]
        objects = [*self.entries, *created]
        if not any(is_of_operator(kind) for kind, _, _ in objects):
            return
        named = {_address(kind, obj) for kind, obj, _ in objects if kind == POD_GROUP}
        for kind, obj, _ in objects:
            owners = [one.get("name", "") for one in obj["metadata"].get("ownerReferences") or ()]
            values = [*labels_of(obj).values(), *owners] if kind == POD else ()
            named.update((_address(kind, obj)[0], value) for value in values)
        found: dict[str, list[InputProblem]] = {}
        for kind, obj, origin in objects:
            if is_of_operator(kind) and _address(kind, obj) not in named and _wants_pods(obj):
                found.setdefault(kind, []).append(InputProblem(origin, _NO_OPERATOR, _title(obj)))
        for first, *others in found.values():
            more = f" (and {plural(len(others), 'other object')})" if others else ""
            self.findings.append(first._replace(message=f"{first.message}{more}"))

    def _kind(self, origin: Origin, obj: JsonObject) -> str | None:
        """The kind in the store; None for an unknown version of a known kind."""
        name, api_version = obj["kind"], obj["apiVersion"]
        kind = kind_of(obj)
        known = KIND_BY_NAME.get(name) if kind == name else None
        if not is_known(kind):
            if kind not in self._unknown:
                self._unknown.add(kind)
                self.warnings.append(InputProblem(origin, _foreign(name, api_version)))
        elif known is not None and known.api_version != api_version:
            text = f"expected {known.api_version} for kind {name}, got {shown(api_version)}"
            self._report(origin, obj, [Finding("error", "apiVersion", text)])
            return None
        return kind

    def warn_of_version(self, origin: Origin, obj: JsonObject) -> None:
        """A claim or template of a version that is read as the current one."""
        text = f"{V1BETA1} is converted to {RESOURCE_API}: the fields of each request move to `exactly`"
        self.warnings.append(InputProblem(origin, text, _title(obj), "apiVersion"))

    def _report(self, origin: Origin, obj: JsonObject, problems: Iterable[Finding]) -> None:
        for problem in problems:
            self._reject(origin, problem.message, problem.field, _title(obj))

    def _reject(self, origin: Origin, message: str, field: str = "", object: str = "") -> None:
        self.problems.append(InputProblem(origin, message, object, field))

    def _add_scenario(self, origin: Origin, value: JsonObject, api_version: str, kind: str) -> None:
        if kind != SCENARIO or api_version != SIMULATION_API:
            accepted = f"apiVersion {SIMULATION_API} with kind {SCENARIO}"
            self._reject(origin, f"expected {accepted}, got {api_version} with kind {kind}", object=kind)
            return
        spec = value.get("spec")
        if not isinstance(spec, dict):
            self._reject(origin, _absent(spec, "a mapping"), "spec", SCENARIO)
            return
        for field in spec:
            if field != "operations":
                self._reject(origin, "unknown field, expected operations", f"spec.{field}", SCENARIO)
        operations = spec.get("operations")
        if not isinstance(operations, list):
            self._reject(origin, _absent(operations, "a list"), "spec.operations", SCENARIO)
            return
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        origin = origin._replace(holder=f"{SCENARIO} {name}" if isinstance(name, str) else SCENARIO)
        for index, operation in enumerate(operations):
            self._add_operation(origin.inside(f"spec.operations[{index}]"), operation)

    def _add_operation(self, origin: Origin, value: Any) -> None:
        form = "{at: DURATION, create: OBJECT}, {at: .., delete: OBJECT} or {at: .., patch: OBJECT}"
        if not isinstance(value, dict):
            self._reject(origin, f"expected {form}, got {shown(value)}")
            return
        unknown = [key for key in value if key not in ("at", *VERBS)]
        for key in unknown:
            self._reject(origin, f"unknown field, expected {form}", key)
        verbs = [verb for verb in VERBS if verb in value]
        if len(verbs) != 1:
            if not unknown or verbs:
                found = " and ".join(verbs) or "none"
                self._reject(origin, f"exactly one of create, delete, patch is needed, got {found}")
            return
        verb = verbs[0]
        at = self._at(origin, value)
        target = value[verb]
        place = origin.inside(verb)
        names = self._names(place, target)
        if names is None or at is None or unknown:
            return
        if names[1] == SCENARIO or names[1] == "List":
            self._reject(place, f"{names[1]} cannot be the object of an operation", "kind")
            return
        operation = self._operation(at, verb, target, place)
        if operation is not None:
            self.operations.append(operation)

    def _at(self, origin: Origin, value: JsonObject) -> int | None:
        raw = value.get("at")
        if raw is None:
            self._reject(origin, f"is required: {SPAN_FORM}", "at")
            return None
        try:
            return parse_span(raw)
        except DurationError as error:
            problem = str(error) if isinstance(raw, str | int | float) else f"got {shown(raw)}"
            self._reject(origin, f"{problem}: expected {SPAN_FORM}", "at")
            return None

    def _operation(self, at: int, verb: Verb, target: JsonObject, place: Origin) -> Operation | None:
        if verb == "create":
            entry = self._object(place, target)
            if entry is None:
                return None
            namespace, name = _address(entry.kind, entry.object)
            return Operation(at, verb, entry.kind, namespace, name, entry.object, place)
        bare = without_nulls(target)
        kind = self._kind(place, bare)
        if kind is None:
            return None
        problems = list(check_name(bare, is_namespaced(kind)))
        body: JsonObject = {}
        if verb == "patch" and not problems:
            problems = list(check_fields(kind, bare))
            metadata = target["metadata"]
            problems += [
                Finding("error", f"metadata.{field}", "is set by the API server and cannot be patched")
                for field in _SERVER_SET
                if field in metadata
            ]
            kept = {key: value for key, value in metadata.items() if key not in ("name", "namespace")}
            body = {key: value for key, value in target.items() if key not in ("apiVersion", "kind", "metadata")}
            if kept:
                body["metadata"] = kept
        self._report(place, bare, problems)
        if problems:
            return None
        if verb == "patch":
            self._check_unknown_fields(place, target)
        namespace, name = _address(kind, bare)
        return Operation(at, verb, kind, namespace, name, body, place)

    def check_uids(self) -> frozenset[str]:
        """All uids of the input, each of one object."""
        given: dict[str, tuple[str, str, str]] = {}
        created = [(one.kind, one.body, one.origin) for one in self.operations if one.verb == "create"]
        for kind, obj, origin in (*self.entries, *created):
            uid, key = obj["metadata"].get("uid"), (kind, *_address(kind, obj))
            if uid and (first := given.setdefault(uid, key)) != key:
                text = f"{shown(uid)} is that of {first[0]} {display_name(*first[1:])}; when left out, it gets its own"
                self._report(origin, obj, [Finding("error", "metadata.uid", text)])
        return frozenset(given)

    def check_names(self, existing_queues: Iterable[str]) -> None:
        """Report objects that are defined twice, and operations on objects that cannot exist at that time."""
        alive: dict[tuple[str, str, str], Origin | None] = {("Queue", "", name): None for name in existing_queues}
        for entry in self.entries:
            key = (entry.kind, *_address(entry.kind, entry.object))
            first = alive.get(key)
            if first is not None:
                title = f"{entry.kind} {display_name(*key[1:])}"
                self._reject(entry.origin, f"already defined in {first}; names must be unique", "metadata.name", title)
            alive[key] = entry.origin
        for operation in sorted(self.operations, key=lambda operation: operation.at):
            key = (operation.kind, operation.namespace, operation.name)
            if operation.verb == "create":
                if key in alive and operation.kind not in _PASSING and is_known(operation.kind):
                    self._reject_operation(operation, "the object already exists at that time")
                alive[key] = operation.origin
            elif key not in alive:
                if operation.kind not in _GENERATED:
                    self._reject_operation(operation, "the object does not exist at that time")
            elif operation.verb == "delete":
                del alive[key]
                if operation.kind == NAMESPACE:
                    alive = {other: origin for other, origin in alive.items() if other[1] != operation.name}

    def _reject_operation(self, operation: Operation, message: str) -> None:
        self._reject(operation.origin, message, "metadata.name", operation.title)


def _without_indices(field: str) -> str:
    return re.sub(r"\[[0-9]+\]", "[]", field)


def _foreign(name: str, api_version: str) -> str:
    """The text about a kind that the simulated API server does not serve."""
    if name == "PodGroup" and group_of(api_version) == group_of(KUBE_API):
        return f"{name} ({api_version}): ignored, only {KUBE_API} is read of this group"
    if name in KIND_BY_NAME:
        return f"{name} ({api_version}): ignored, not the {name} of {KIND_BY_NAME[name].api_version}"
    near = difflib.get_close_matches(name[:_LONG_NAME].capitalize(), KIND_BY_NAME, n=1, cutoff=0.8)
    return f"{name} ({api_version}): ignored, not a kind of the scheduler{f'; did you mean {near[0]}?' if near else ''}"


def _absent(value: Any, expected: str) -> str:
    """The problem of a field without a value of its type."""
    return "is required" if value is None else f"expected {expected}, got {shown(value)}"


def _title(obj: JsonObject) -> str:
    """Kind and name, also of an invalid object."""
    metadata = as_map(obj.get("metadata"))
    name = display_name(str(metadata.get("namespace") or ""), str(metadata.get("name") or "(no name)"))
    return f"{obj['kind']} {name}"


def _wants_pods(obj: JsonObject) -> bool:
    """Whether an object of an operator has pods: it is not scaled to 0, suspended or finished."""
    spec, status = as_map(obj.get("spec")), as_map(obj.get("status"))
    is_suspended = spec.get("suspend") or as_map(spec.get("runPolicy")).get("suspend")
    conditions = status.get("conditions")
    ended = [
        one for one in (conditions if isinstance(conditions, list) else ())
        if isinstance(one, dict) and one.get("type") in _ENDED and one.get("status") == "True"
    ]  # fmt: skip
    return spec.get("replicas") != 0 and not is_suspended and not ended and not status.get("terminalState")


def _address(kind: str, obj: JsonObject) -> tuple[str, str]:
    """Namespace as in the store, and name."""
    metadata = obj["metadata"]
    namespaced = is_namespaced(kind)
    if namespaced is None:
        return metadata.get("namespace", ""), metadata["name"]
    return (metadata.get("namespace") or "default") if namespaced else "", metadata["name"]


def without_nulls(value: Any) -> Any:
    """A copy without null entries of mappings, which the API server treats as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [without_nulls(entry) for entry in value]
    return value
