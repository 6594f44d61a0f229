"""Pod templates of vcjobs, checked as the API server checks pods, so that a job that cannot have pods is rejected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.annotations import JDB_MAX_UNAVAILABLE, JDB_MIN_AVAILABLE
from capcard_sched.validation.budget import checkpoint
from capcard_sched.validation.checks import Finding, annotation_field, listed
from capcard_sched.validation.inventory import texts
from capcard_sched.validation.names import check_annotation_key, check_label, check_labels, shown
from capcard_sched.validation.pod_resources import check_pod_level, check_resources

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from capcard_sched.validation.inventory import Json

_BUDGET: Final = re.compile(r"[1-9][0-9]{0,9}|[1-9][0-9]?%")
_BUDGET_FORM: Final = "a positive integer, or 1% to 99%"
#: Since Kubernetes 1.34: printable characters of ASCII but "=".
_ENV_NAME = re.compile(r"[ -<>-~]+")
_PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*(?<!-)")
_POLICIES: Final = ("Always", "OnFailure", "Never")
_PULL: Final = ("Always", "IfNotPresent", "Never", "")
_DNS: Final = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None", "")
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP", "")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute", "")
_TOLERATIONS: Final = ("Exists", "Equal", "Lt", "Gt", "")


def check_budgets(annotations: Mapping[str, str], at: str = "metadata") -> Iterator[Finding]:
    """What is wrong with the disruption annotations of the metadata at the path `at`."""
    given = [key for key in (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE) if key in annotations]
    if len(given) > 1:
        message = f"must not be set beside {given[0]}"
        yield Finding("error", annotation_field(given[1], at), message, "one of the two annotations")
    for key in given:
        if _BUDGET.fullmatch(annotations[key]) is None:
            yield Finding(
                "error", annotation_field(key, at), f"{shown(annotations[key])} is not accepted", _BUDGET_FORM
            )


def check_pod_template(template: Any, field: str, *, volumes: Iterable[str] = ()) -> Iterator[Finding]:
    """Everything for which a pod of the template is rejected; `field` is its path, `volumes` are further ones."""
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        yield Finding("error", f"{field}.spec", "is required", "a pod spec with at least one container")
        return
    metadata, spec = template.get("metadata"), template["spec"]
    if isinstance(metadata, dict):
        yield from check_labels(metadata.get("labels"), f"{field}.metadata.labels")
        annotations = metadata.get("annotations")
        for key in annotations if isinstance(annotations, dict) else ():
            yield from check_annotation_key(key, f"{field}.metadata.annotations")
        yield from check_budgets(texts(template, "metadata", "annotations"), f"{field}.metadata")
    yield from _check_spec(spec, f"{field}.spec", volumes)


def _check_spec(spec: Json, field: str, further: Iterable[str]) -> Iterator[Finding]:
    yield from _choice(spec, "restartPolicy", _POLICIES, field)
    yield from _choice(spec, "dnsPolicy", _DNS, field)
    for name in ("terminationGracePeriodSeconds", "activeDeadlineSeconds"):
        value, least = spec.get(name), 0 if name.startswith("term") else 1
        if isinstance(value, int) and value < least:
            yield Finding("error", f"{field}.{name}", f"{value} is too small", f"a whole number from {least}")
    volumes = yield from _check_volumes(spec.get("volumes"), f"{field}.volumes")
    volumes.update(further)
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        yield Finding("error", f"{field}.containers", "is required", "a list with at least one container")
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for place, container in _each(spec.get(group), f"{field}.{group}"):
            yield from _check_container(container, place, names, volumes)
    for place, toleration in _each(spec.get("tolerations"), f"{field}.tolerations"):
        yield from _choice(toleration, "operator", _TOLERATIONS, place)
        yield from _choice(toleration, "effect", _EFFECTS, place)
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            yield Finding("error", f"{place}.value", "must be empty when operator is Exists", "no value")
    yield from check_pod_level(spec, f"{field}.resources")
    yield from check_pod_claims(spec, field)
    yield from check_labels(spec.get("nodeSelector"), f"{field}.nodeSelector")


def check_pod_claims(spec: Json, field: str) -> Iterator[Finding]:
    """Errors about ResourceClaims without one source or with a name of another, and about those that are not there."""
    names: dict[str, None] = {}
    for place, claim in _each(spec.get("resourceClaims"), f"{field}.resourceClaims"):
        name = str(claim.get("name"))
        yield from check_label(claim.get("name"), f"{place}.name")
        if name in names:
            yield Finding("error", f"{place}.name", f"claim {shown(name)} occurs twice", "distinct names")
        names[name] = None
        sources = [key for key in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(key)]
        if len(sources) != 1:
            message = "has no source" if not sources else "has two sources"
            yield Finding("error", place, message, "resourceClaimName or resourceClaimTemplateName")
    for group in ("initContainers", "containers"):
        for place, container in _each(spec.get(group), f"{field}.{group}"):
            resources = container.get("resources")
            used = resources.get("claims") if isinstance(resources, dict) else None
            for at, claim in _each(used, f"{place}.resources.claims"):
                if str(claim.get("name")) not in names:
                    message = f"the pod has no claim {shown(claim.get('name'))}"
                    yield Finding("error", f"{at}.name", message, listed(dict.fromkeys(names)) or "no claim is defined")


def _check_volumes(volumes: Any, field: str) -> Generator[Finding, None, set[str]]:
    """Yields findings and returns the volume names."""
    names: set[str] = set()
    for place, volume in _each(volumes, field):
        name = volume.get("name")
        yield from check_label(name, f"{place}.name")
        if str(name) in names:
            yield Finding("error", f"{place}.name", f"volume {shown(name)} occurs twice", "distinct names")
        names.add(str(name))
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        if len(sources) > 1:
            found = ", ".join(sorted(sources))
            yield Finding("error", place, f"has several sources: {found}", "one source, such as emptyDir")
    return names


def _check_container(container: Json, field: str, names: set[str], volumes: set[str]) -> Iterator[Finding]:
    name = container.get("name")
    yield from check_label(name, f"{field}.name")
    if str(name) in names:
        yield Finding("error", f"{field}.name", f"container {shown(name)} occurs twice", "distinct names")
    names.add(str(name))
    image = container.get("image")
    if not isinstance(image, str) or not image:
        yield Finding("error", f"{field}.image", "is required", "an image reference")
    elif image != image.strip():
        yield Finding("error", f"{field}.image", f"{shown(image)} has leading or trailing spaces", "an image reference")
    yield from _choice(container, "imagePullPolicy", _PULL, field)
    yield from _check_ports(container.get("ports"), f"{field}.ports")
    for place, variable in _each(container.get("env"), f"{field}.env"):
        if not isinstance(variable.get("name"), str) or _ENV_NAME.fullmatch(variable["name"]) is None:
            message = f"{shown(variable.get('name'))} is not the name of an environment variable"
            yield Finding("error", f"{place}.name", message, 'printable characters of ASCII but "="')
        if variable.get("value") and variable.get("valueFrom"):
            yield Finding("error", f"{place}.valueFrom", "must not be set beside value", "value or valueFrom")
    known = ""
    paths: set[str] = set()
    for place, mount in _each(container.get("volumeMounts"), f"{field}.volumeMounts"):
        path = mount.get("mountPath")
        if not path:
            yield Finding("error", f"{place}.mountPath", "is required", "an absolute path")
        elif str(path) in paths:
            yield Finding("error", f"{place}.mountPath", f"{shown(path)} occurs twice", "distinct paths")
        paths.add(str(path))
        if str(mount.get("name")) not in volumes:
            known = known or listed(volumes) or "no volume is defined"
            yield Finding("error", f"{place}.name", f"there is no volume {shown(mount.get('name'))}", known)
    yield from check_resources(container.get("resources"), f"{field}.resources")


def _check_ports(ports: Any, field: str) -> Iterator[Finding]:
    for place, port in _each(ports, field):
        for name, least in (("containerPort", 1), ("hostPort", 0)):
            value = port.get(name, 0 if name == "hostPort" else None)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 65535:
                yield Finding("error", f"{place}.{name}", f"{shown(value)} is not a port", f"{least} to 65535")
        label = port.get("name") or "port"
        if not isinstance(label, str) or _PORT_NAME.fullmatch(label) is None:
            accepted = 'at most 15 lower-case letters, digits and "-", with at least one letter'
            yield Finding("error", f"{place}.name", f"{shown(label)} is not the name of a port", accepted)
        yield from _choice(port, "protocol", _PROTOCOLS, place)


def _choice(obj: Json, key: str, choices: tuple[str, ...], field: str) -> Iterator[Finding]:
    value = obj.get(key)
    if value is not None and value not in choices:
        accepted = ", ".join(choice for choice in choices if choice)
        yield Finding("error", f"{field}.{key}", f"{shown(value)} is not accepted", accepted)


def _each(values: Any, field: str) -> Iterable[tuple[str, Json]]:
    """The objects of a list with their paths; other entries are errors of type, found by the schema."""
    for index, entry in enumerate(values if isinstance(values, list) else ()):
        checkpoint()
        if isinstance(entry, dict):
            yield f"{field}[{index}]", entry
