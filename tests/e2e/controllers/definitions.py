"""CustomResourceDefinitions of operators: any fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from capcard_sched.controllers.owner_rules import built_in_rules
from tests.controlplane.manifests import Manifest

_OPEN: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
#: The API server asks definitions of groups of *.k8s.io for it.
_APPROVAL: Final = "https://github.com/kubernetes-sigs/jobset"


def open_kind(group: str, kind: str, *versions: str) -> Manifest:
    """The definition of a kind, whose first version is stored."""
    plural = f"{kind.lower()}s"
    served = [
        {"name": version, "served": True, "storage": version == versions[0], "schema": {"openAPIV3Schema": _OPEN}}
        for version in versions
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": _APPROVAL}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": served,
        },
    }


def of_operators() -> Iterator[Manifest]:
    """Those of all kinds that the built-in rules read."""
    versions: dict[tuple[str, str], list[str]] = {}
    for owner in (owner for rule in built_in_rules() for owner in rule.owners):
        found = versions.setdefault((owner.api_kind.group, owner.kind), [])
        version = owner.api_version.rpartition("/")[2]
        if version not in found:
            found.append(version)
    for (group, kind), served in versions.items():
        yield open_kind(group, kind, *served)
