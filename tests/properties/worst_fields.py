"""Objects with many entries in one list or map, for every list and map that a type declares.

Fields that rules read beside it get a valid value, so that its entries are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import inspect

Json = dict[str, Any]
#: Field to the value that makes the entries around it valid.
_VALUES: Final[dict[str, Any]] = {
    "operator": "Exists",
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "maxSkew": 1,
    "weight": 1,
    "tier": 1,
    "type": "Node",
    "deviceClassName": "c",
    "allocationMode": "ExactCount",
    "count": 1,
    "containerPort": 1,
    "schedulerName": "capcard-sched",
}
_SEQUENCES: Final = (inspect.VarTupleType, inspect.ListType, inspect.SetType, inspect.FrozenSetType)


def declared_fields(kind: type) -> list[str]:
    """The paths of all lists (`a.b[]`) and maps (`a.b{}`) of a type, in the order of its fields."""
    return [*_declared(inspect.type_info(kind), "", ())]


def _declared(info: inspect.Type, path: str, above: tuple[type, ...]) -> Iterator[str]:
    if isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _declared(each, path, above)
    elif isinstance(info, inspect.StructType) and info.cls not in above:
        for field in info.fields:
            place = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _declared(field.type, place, (*above, info.cls))
    elif isinstance(info, _SEQUENCES):
        yield f"{path}[]"
        yield from _declared(info.item_type, f"{path}[]", above)
    elif isinstance(info, inspect.DictType):
        yield f"{path}{{}}"
        yield from _declared(info.value_type, f"{path}{{}}", above)


def filled_fields(obj: Any, fields: set[str], many: int, path: str = "") -> Iterator[str]:
    """Those of some paths that have a number of entries in an object."""
    if isinstance(obj, list):
        if len(obj) >= many:
            yield f"{path}[]"
        for each in obj[:1]:
            yield from filled_fields(each, fields, many, f"{path}[]")
    elif isinstance(obj, dict):
        is_map = f"{path}{{}}" in fields
        if is_map and len(obj) >= many:
            yield f"{path}{{}}"
        for key, each in [*obj.items()][: 1 if is_map else None]:
            place = f"{path}{{}}" if is_map else f"{path}.{key}" if path else key
            yield from filled_fields(each, fields, many, place)


def worst_object(kind: type, path: str, many: int) -> Json:
    """An object of a type with many different entries in a list or map."""
    found: Json = _built(inspect.type_info(kind), path, many, 0, "")
    return found


def _built(info: inspect.Type, path: str, many: int, number: int, name: str) -> Any:
    """A value of a type; `path`: that of the list or map with many entries, "" outside of it."""
    if isinstance(info, inspect.UnionType):
        return _built(_main_type(info, path), path, many, number, name)
    if isinstance(info, inspect.StructType):
        return _struct(info, path, many, number)
    if isinstance(info, _SEQUENCES):
        rest = path.removeprefix("[]")
        entries = range(many) if path == "[]" else [number] if path else ()
        return [_built(info.item_type, rest, many, index, name) for index in entries]
    if isinstance(info, inspect.DictType):
        rest = path.removeprefix("{}")
        entries = range(many) if path == "{}" else [number] if path else ()
        return {f"worst.example.com/k{index}": _built(info.value_type, rest, many, index, name) for index in entries}
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return _VALUES.get(name, 1)
    if isinstance(info, inspect.BoolType):
        return True
    return _VALUES.get(name, str(1 + number) if name in ("", "value") else f"n{number}")


def _main_type(info: inspect.UnionType, path: str) -> inspect.Type:
    """The alternative that a path leads into, else the first but null."""
    into = {"[": _SEQUENCES, "{": (inspect.DictType,)}.get(path[:1], (inspect.StructType,))
    for each in info.types:
        if path and isinstance(each, into):
            return each
    return next(each for each in info.types if not isinstance(each, inspect.NoneType))


def _struct(info: inspect.StructType, path: str, many: int, number: int) -> Json:
    """`path` begins with the field that leads to the list or map."""
    wanted, made = path.lstrip("."), Json()
    for field in info.fields:
        name = field.encode_name
        rest = wanted.removeprefix(name) if wanted.startswith((f"{name}.", f"{name}[", f"{name}{{")) else ""
        if rest or field.required or name in ("key", "name") or name in _VALUES:
            made[name] = _built(field.type, rest, many, number, name)
    if wanted.startswith("values["):
        made["operator"] = "In"
    return made
