"""Writes the final cluster as one `v1` List: the same input gives the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.controllers.objects import JsonObject, key_of
from capcard_sched.simulation.kinds import creation_rank

if TYPE_CHECKING:
    from capcard_sched.simulation.store import Store


def as_list(store: Store) -> JsonObject:
    """Every object by kind (in order of the kinds table, others after it), namespace and name."""
    kinds = sorted(store.kinds(), key=lambda kind: (creation_rank(kind), kind))
    items = [obj for kind in kinds for obj in sorted(store.list(kind), key=key_of)]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}


def to_json(document: JsonObject) -> str:
    """Indented, keys in order, with a newline at the end."""
    encoded = msgspec.json.encode(document, order="sorted")
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def to_yaml(document: JsonObject) -> str:
    """One document, keys in order."""
    import yaml

    class Dumper(yaml.CSafeDumper):
        """No anchors, although objects share parts in memory."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the base class names it
            return True

    text: str = yaml.dump(document, Dumper=Dumper, sort_keys=True, default_flow_style=False, allow_unicode=True)
    return text
