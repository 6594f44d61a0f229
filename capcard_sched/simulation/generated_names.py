"""Names of objects with `metadata.generateName` alone, as an API server makes them: the prefix and five characters.

The characters follow from kind, namespace, prefix, and position among the objects with the same ones: the same input
always gives the same names.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from capcard_sched.simulation.kinds import SCENARIO
from capcard_sched.simulation.manifests import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.simulation.manifests import ManifestDocument

    #: An object, and a function that replaces it where it was read.
    Place: TypeAlias = tuple[JsonObject, Callable[[JsonObject], None]]

#: Characters of generated names in Kubernetes: no vowels, no digits that look like letters.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_CHARACTERS: Final = 5
#: Characters of the prefix; the API server cuts longer ones.
_PREFIX_CHARACTERS: Final = 58


def generate_names(documents: Iterable[ManifestDocument]) -> None:
    """Set the missing names in all documents, also inside Lists and operations of Scenarios; names are unique."""
    places = [place for document in documents for place in object_places(document.value)]
    unnamed = [place for place in places if _prefix(place[0])]
    if not unnamed:
        return
    taken = {_key(obj, str(obj["metadata"].get("name"))) for obj, _ in places if isinstance(obj.get("metadata"), dict)}
    numbers: Counter[tuple[str, str, str]] = Counter()
    for obj, replace in unnamed:
        base = _prefix(obj)[:_PREFIX_CHARACTERS]
        name = None
        while name is None or _key(obj, name) in taken:
            key = _key(obj, base)
            numbers[key] += 1
            name = base + name_suffix("/".join((*key, str(numbers[key]))))
        taken.add(_key(obj, name))
        replace({**obj, "metadata": {**obj["metadata"], "name": name}})


def object_places(value: Any) -> Iterator[Place]:
    """The objects of a document, also inside Lists and operations of Scenarios."""
    if not isinstance(value, dict):
        return
    spec = value.get("spec")
    if is_list(value):
        items = value.get("items")
        for index, item in enumerate(items) if isinstance(items, list) else ():
            yield from _inside(items, index, item)
    elif value.get("kind") == SCENARIO and isinstance(spec, dict) and isinstance(spec.get("operations"), list):
        for operation in spec["operations"]:
            if isinstance(operation, dict):
                yield from _inside(operation, "create", operation.get("create"))
    else:
        yield value, value.update


def _inside(holder: Any, key: Any, value: Any) -> Iterator[Place]:
    """The objects of an entry of a list or mapping; an object is replaced, since aliases of YAML share it."""
    found = list(object_places(value))
    if len(found) == 1 and found[0][0] is value:
        yield value, lambda new: holder.__setitem__(key, new)
    else:
        yield from found


def _prefix(obj: JsonObject) -> str:
    """`metadata.generateName` of an object without a name, else ""."""
    metadata = obj.get("metadata")
    prefix = metadata.get("generateName") if isinstance(metadata, dict) and not metadata.get("name") else None
    return prefix if isinstance(prefix, str) else ""


def _key(obj: JsonObject, name: str) -> tuple[str, str, str]:
    return str(obj.get("kind")), str(obj["metadata"].get("namespace") or ""), name


def name_suffix(text: str) -> str:
    """The five characters that follow from a text."""
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    characters = ""
    for _ in range(_CHARACTERS):
        number, digit = divmod(number, len(_ALPHABET))
        characters += _ALPHABET[digit]
    return characters
