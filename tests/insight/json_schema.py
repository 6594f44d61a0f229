"""Validates a document against the part of JSON Schema that the published schema uses."""

from __future__ import annotations

from typing import Any

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
_KNOWN = {
    "$schema", "title", "description", "default", "$ref", "$defs", "type", "properties", "required", "items",
    "prefixItems", "minItems", "maxItems", "enum", "anyOf", "additionalProperties",
}  # fmt: skip


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "$") -> list[str]:
    """The places where a document violates a schema. Unknown keywords and properties are violations, too."""
    found = [f"{path}: unknown keyword {keyword}" for keyword in schema.keys() - _KNOWN]
    if "$ref" in schema:
        found += violations(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema and all(violations(value, one, root, path) for one in schema["anyOf"]):
        found.append(f"{path}: {value!r} matches no alternative")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is not one of {schema['enum']}")
    kind = schema.get("type")
    if kind in {"integer", "number"}:
        right = (int,) if kind == "integer" else (int, float)
        if not isinstance(value, right) or isinstance(value, bool):
            found.append(f"{path}: {value!r} is no {kind}")
    elif kind is not None and not isinstance(value, _TYPES[kind]):
        return [*found, f"{path}: {value!r} is no {kind}"]
    if kind == "object":
        found += _object(value, schema, root, path)
    if kind == "array":
        first = schema.get("prefixItems", [])
        items = schema.get("items") or {}
        for index, item in enumerate(value):
            of = first[index] if index < len(first) else items
            found += violations(item, of, root, f"{path}[{index}]") if isinstance(of, dict) else []
    return found


def _object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], path: str) -> list[str]:
    found = [f"{path}: {name} is missing" for name in schema.get("required", ()) if name not in value]
    properties, more = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        of = properties.get(name, more)
        if isinstance(of, dict):
            found += violations(item, of, root, f"{path}.{name}")
        elif of is None:
            found.append(f"{path}: unknown property {name}")
    return found
