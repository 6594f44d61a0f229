"""Manifests: files, folders and standard input, YAML and JSON, several documents in one; the final cluster as one List.

`read_yaml` gives the rules of YAML.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from capcard_sched.controllers.objects import JsonObject, key_of
from capcard_sched.input_files import MOST_BYTES, check_length, read_input
from capcard_sched.model.yaml_reader import MAX_DIGITS, YamlError, read_yaml
from capcard_sched.simulation.kinds import creation_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.simulation.store import Store

SUFFIXES = (".yaml", ".yml", ".json")
#: Escapes of half a surrogate pair, alone or not: such text is checked further.
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class ManifestDocument(NamedTuple):
    """One document as it was read."""

    #: The path as the user wrote it (or the file inside a folder); `-` is standard input.
    source: str
    #: Counted from 1 inside its file, empty documents included.
    number: int
    value: Any


class ManifestError(ValueError):
    """Unreadable input; the text names file and position."""

    def __init__(self, source: str, problem: str, number: int = 0) -> None:
        """`number` of the document in the file, 0 for the whole file."""
        super().__init__(": ".join(filter(None, (source, f"document {number}" if number else "", problem))))
        self.source = source
        self.problem = problem
        self.number = number


def read_manifests(paths: Sequence[str], stdin: Any = None) -> Iterator[ManifestDocument]:
    """Every document of `paths` in order; folders give their manifests sorted by name. Raises ManifestError."""
    for name in paths:
        if name == "-":
            yield from parse_manifest("-", _decoded("-", _standard_input(stdin)))
            continue
        if not name:
            raise ManifestError('""', "an empty name: expected a file, a folder or - for standard input")
        path = Path(name)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not files:
                raise ManifestError(name, f"no {', '.join(SUFFIXES)} file in this folder")
            for file in files:
                yield from parse_manifest(str(file), _contents(file))
        else:
            yield from parse_manifest(name, _contents(path))


def _standard_input(stdin: Any) -> bytes:
    stream = sys.stdin if stdin is None else stdin
    buffer = getattr(stream, "buffer", None)
    raw = stream.read() if buffer is None else buffer.read(MOST_BYTES + 1)
    try:
        check_length(len(raw), MOST_BYTES, "-")
    except OSError as error:
        raise ManifestError("-", str(error.strerror)) from None
    return raw if isinstance(raw, bytes) else str(raw).encode()


def _contents(path: Path) -> str:
    try:
        return _decoded(str(path), read_file(path))
    except OSError as error:
        raise ManifestError(str(path), error.strerror or str(error)) from None


def read_file(path: Path) -> bytes:
    """The content of a file, for any number of reads: a pipe is read once. Raises OSError."""
    return read_input(path) if path.is_file() else _read_pipe(path)


@functools.cache
def _read_pipe(path: Path) -> bytes:
    return read_input(path)


def _decoded(source: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(source, f"not UTF-8 text (byte {error.start})") from None


def parse_manifest(source: str, text: str) -> Iterator[ManifestDocument]:
    """The documents of one file. Raises ManifestError."""
    if source.endswith(".json") or text.lstrip()[:1] == "{":
        try:
            yield from _json_documents(source, text)
            return
        except json.JSONDecodeError as error:
            if source.endswith(".json"):
                raise ManifestError(source, f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    yield from _yaml_documents(source, text)


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_documents(source: str, text: str) -> list[ManifestDocument]:
    documents: list[ManifestDocument] = []

    def fail(problem: str) -> NoReturn:
        raise ManifestError(source, problem, len(documents) + 1)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            fail(f"the key {twice!r} occurs twice in one object")
        return found

    def constant(name: str) -> NoReturn:
        fail(f"{name} is not a JSON number")

    def integer(digits: str) -> int:
        return int(digits) if len(digits) <= MAX_DIGITS else fail(f"{digits[:60]!r} is not an integer: too long")

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else fail(f"{digits[:60]!r} is not a finite number")

    decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant, parse_int=integer, parse_float=number)
    position = 0
    try:
        while text[position:].strip() if position else True:
            position += len(text[position:]) - len(text[position:].lstrip())
            start = position
            value, position = decoder.raw_decode(text, position)
            if _HALF_PAIR.search(text, start, position) and not _is_unicode(value):
                fail("a string holds half of a surrogate pair, which is not valid Unicode")
            documents.append(ManifestDocument(source, len(documents) + 1, value))
    except RecursionError:
        fail("nested too deeply")
    return documents


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


# --- YAML -----------------------------------------------------------------------------------------------------------


def _yaml_documents(source: str, text: str) -> Iterator[ManifestDocument]:
    try:
        for document in read_yaml(text):
            if document.value is not None:
                yield ManifestDocument(source, document.number, document.value)
    except YamlError as error:
        where = f"line {error.line}, column {error.column}: " if error.line else ""
        raise ManifestError(source, f"{where}{error}", error.document) from None


def is_list(value: JsonObject) -> bool:
    """Whether an object is a `List`, or a typed one such as PodList."""
    kind = value.get("kind")
    return kind == "List" or (isinstance(kind, str) and kind.endswith("List") and "items" in value)


def items_of(value: JsonObject) -> Iterator[tuple[str, Any]]:
    """Place and item of each entry of a List. Those of a typed list, such as PodList, need not repeat their kind."""
    kind = str(value["kind"])
    implied = {} if kind == "List" else {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List")}
    for index, item in enumerate(value.get("items") or ()):
        yield f"items[{index}]", {**implied, **item} if isinstance(item, dict) else item


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
