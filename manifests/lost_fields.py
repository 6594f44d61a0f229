"""Lists the fields that the API server would drop from stored objects with the CustomResourceDefinitions of crds/.

`kubectl get crds -o json | python manifests/lost_fields.py` compares those of the cluster with ours. Exit status 1: at
least one field, one version or one kind that is stored would be lost.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = Path(__file__).resolve().parent / "crds"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def lost(theirs: Any, ours: Any, path: str) -> Iterator[str]:
    """Paths of the fields of a schema that another one drops."""
    if ours.get(_PRESERVE) and not ours.get("properties") and not ours.get("additionalProperties"):
        return  # everything below is kept
    if theirs.get(_PRESERVE) and not ours.get(_PRESERVE) and path:
        yield f"{path}.* (fields without a schema)"
    for name, field in theirs.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        known = ours.get("properties", {}).get(name)
        if known is None and isinstance(ours.get("additionalProperties"), dict):
            known = ours["additionalProperties"]
        if known is not None:
            yield from lost(field, known, below)
        elif not ours.get(_PRESERVE) and path != "metadata":
            yield below
    for word, mark in (("items", "[]"), ("additionalProperties", ".*")):
        inner = theirs.get(word)
        if not isinstance(inner, dict):
            continue
        known = ours.get(word)
        if isinstance(known, dict):
            yield from lost(inner, known, path + mark)
        elif not ours.get(_PRESERVE):
            yield path + mark


def lost_fields(definitions: list[Any]) -> Iterator[str]:
    """One line per stored field, version or scope that is lost with our definition of the name."""
    ours = {each["metadata"]["name"]: each for each in (yaml.safe_load(file.read_text()) for file in _OURS.iterdir())}
    for definition in definitions:
        name = definition["metadata"]["name"]
        if name not in ours:
            continue
        if definition["spec"]["scope"] != ours[name]["spec"]["scope"]:
            yield f"{name}: scope {definition['spec']['scope']}"
        versions = {each["name"]: each for each in ours[name]["spec"]["versions"]}
        stored = definition.get("status", {}).get("storedVersions", [])
        for version in definition["spec"]["versions"]:
            if version["name"] in versions:
                theirs, own = (each["schema"]["openAPIV3Schema"] for each in (version, versions[version["name"]]))
                yield from (f"{name} {version['name']}: {field}" for field in lost(theirs, own, ""))
            elif version["name"] in stored:
                yield f"{name}: stored version {version['name']}"


def main() -> int:
    """Prints the lines for the definitions of standard input."""
    found = yaml.load(sys.stdin, yaml.CSafeLoader)
    lines = list(lost_fields(found.get("items", [found])))
    sys.stdout.write(("\n".join(lines) or "no stored field would be lost") + "\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
