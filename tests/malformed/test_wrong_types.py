"""A wrong type in any field of any kind that the scheduler reads: the message names object, field and accepted form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from msgspec import inspect

from capcard_sched.kube.decode import KindDecoder, UndecodableObject
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS, WatchedKind
from capcard_sched.kube.reflector import DeltaStore
from capcard_sched.model.decode_errors import field_path
from capcard_sched.model.kube_groups import KubeConstraints, KubePodGroup, KubePolicy, held_text
from tests.malformed.world import World

#: A value of each type of JSON, by the names of the decoder's types that accept it.
VALUES: Final[dict[str, Any]] = {"str": "wrong", "int": 7, "float": 1.5, "bool": True, "object": {}, "array": []}
JARGON: Final = re.compile(r"\$|`|Expected|Object |got (str|int|float|bool|object|array)\b")
_NAMES: Final = {
    inspect.StrType: {"str"},
    inspect.IntType: {"int"},
    inspect.FloatType: {"float", "int"},
    inspect.BoolType: {"bool"},
    inspect.AnyType: set(VALUES),
    inspect.RawType: set(VALUES),
    inspect.DictType: {"object"},
    inspect.StructType: {"object"},
    inspect.ListType: {"array"},
    inspect.VarTupleType: {"array"},
    inspect.LiteralType: {"str"},
}


class Wrong(NamedTuple):
    """A value of a type that the field at `steps` does not accept."""

    steps: tuple[str, ...]
    value: Any


def _options(declared: inspect.Type) -> Sequence[inspect.Type]:
    while isinstance(declared, inspect.Metadata):
        declared = declared.type
    return declared.types if isinstance(declared, inspect.UnionType) else [declared]


def wrong_values(declared: inspect.Type, steps: tuple[str, ...] = (), depth: int = 9) -> Iterator[Wrong]:
    """Every field under a type, with a value of each type that it does not accept."""
    options = [each for each in _options(declared) if not isinstance(each, inspect.NoneType)]
    accepted = set().union(*(_NAMES[type(each)] for each in options))
    if steps:
        yield from (Wrong(steps, value) for name, value in VALUES.items() if name not in accepted)
    if not depth:
        return
    for each in options:
        if isinstance(each, inspect.StructType):
            for field in each.fields:
                yield from wrong_values(field.type, (*steps, field.encode_name), depth - 1)
        elif isinstance(each, inspect.DictType):
            yield from wrong_values(each.value_type, (*steps, "a.b/c"), depth - 1)
        elif isinstance(each, inspect.ListType | inspect.VarTupleType):
            yield from wrong_values(each.item_type, (*steps, "0"), depth - 1)


def document(wrong: Wrong) -> Any:
    value = wrong.value
    for step in reversed(wrong.steps):
        value = [value] if step == "0" else {step: value}
    return value


class Listener(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def watch(self, resource: str, event: str, detail: str = "") -> None:
        if event == "undecodable":
            self.texts.append(detail)


def read(kind: WatchedKind[Any], obj: dict[str, Any]) -> str:
    """What the reflector reports about an object."""
    (item,) = KindDecoder(kind).page(msgspec.json.encode({"items": [obj]})).items
    assert isinstance(item, UndecodableObject), obj
    listener = Listener()
    DeltaStore(kind, listener).changed(item, [])
    (text,) = listener.texts
    return text


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_each_field_of_each_kind(kind: WatchedKind[Any]) -> None:
    found = [
        each
        for each in wrong_values(inspect.type_info(kind.type))
        if each.steps not in {("metadata",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid"),
                              ("metadata", "resourceVersion")}  # no object has them
    ]  # fmt: skip
    assert len(found) > 8
    for wrong in found:
        obj = document(wrong)
        obj["metadata"] = {"name": "bad", "namespace": "ns", **obj.get("metadata", {})}
        text = read(kind, obj)
        assert text.startswith(f"{kind.name} ns/bad: {field_path(wrong.steps)}: expected "), text
        assert not JARGON.search(text), text


@pytest.mark.parametrize(
    ("field", "form"), [("schedulingPolicy", KubePolicy), ("schedulingConstraints", KubeConstraints)]
)
def test_the_parts_of_native_groups_that_are_decoded_later(field: str, form: Any) -> None:
    found = list(wrong_values(inspect.type_info(form)))
    assert found
    for wrong in found:
        if wrong.steps[:2] == ("basic", "a.b/c"):
            continue
        group = msgspec.convert({"metadata": {"name": "g"}, "spec": {field: document(wrong)}}, KubePodGroup)
        text = held_text(group.spec, "PodGroup g")
        assert text.startswith(f"spec.{field_path((field, *wrong.steps))} of PodGroup g: expected "), text
        assert not JARGON.search(text)


#: Fields of a PodGroup of Volcano that the state decodes.
SUBGROUPS: Final[dict[str, dict[str, Any]]] = {
    "name": {"object": {}},
    "labelSelector": {"str": "x"},
    "labelSelector.matchLabels": {"array": []},
    "labelSelector.matchExpressions[0].key": {"int": 7},
    "matchLabelKeys": {"str": "x"},
    "matchLabelKeys[0]": {"int": 7},
    "subGroupSize": {"str": "two", "float": 1.5, "bool": True},
    "minSubGroups": {"str": "two", "array": []},
}


def _nested(path: str, value: Any) -> Any:
    for step in reversed(re.findall(r"[A-Za-z]+|\[0\]", path)):
        value = [value] if step == "[0]" else {step: value}
    return value


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in SUBGROUPS.items() for value in values.values()]
)
def test_the_event_of_a_policy_of_subgroups(path: str, value: Any) -> None:
    world = World()
    world.h.group("bad", queue="q", phase="Pending", policies=[_nested(path, value)])
    world.run()
    (event,) = [each for each in world.events() if each.reason == "InvalidObject"]
    assert (event.kind, event.name) == ("PodGroup", "bad")
    assert f"spec.subGroupPolicy[0].{path}: expected " in event.message
    assert not JARGON.search(event.message)
