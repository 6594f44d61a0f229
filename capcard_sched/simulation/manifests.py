"""Reading manifests: files, folders and standard input; YAML and JSON; several documents in one.

YAML is read as Kubernetes' own tools read it: timestamps stay strings, keys become strings, `a: 1:30` is a string, and
a key that occurs twice is an error.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUFFIXES = (".yaml", ".yml", ".json")
#: Values after aliases were expanded; a file that needs more is an attack or a mistake.
MAX_VALUES = 20_000_000

_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_INTEGER = re.compile(r"^[-+]?(0b[0-1_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_TRUE = frozenset({"yes", "true", "on"})


class Document(NamedTuple):
    """One document as it was read."""

    #: The path as the user wrote it (or the file inside a folder); `-` is standard input.
    source: str
    #: Counted from 1 inside its file, empty documents included.
    number: int
    value: Any


class ManifestError(ValueError):
    """Something that cannot be read; the text names the file and the place."""


class _Loader(yaml.CSafeLoader):
    """The C parser with the scalar rules of Kubernetes."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in (_TAG + "timestamp", _TAG + "int", _TAG + "float")]
    for first, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TAG + "int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def read_manifests(paths: Sequence[str], stdin: Any = None) -> Iterator[Document]:
    """Every document of `paths` in order; folders give their manifests sorted by name. Raises ManifestError."""
    for name in paths:
        if name == "-":
            yield from parse_manifest("-", _decoded("-", _standard_input(stdin)))
            continue
        path = Path(name)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not files:
                raise ManifestError(f"{name}: no {', '.join(SUFFIXES)} file in this folder")
            for file in files:
                yield from parse_manifest(str(file), _contents(file))
        else:
            yield from parse_manifest(name, _contents(path))


def _standard_input(stdin: Any) -> bytes:
    stream = sys.stdin if stdin is None else stdin
    raw = getattr(stream, "buffer", stream).read()
    return raw if isinstance(raw, bytes) else str(raw).encode()


def _contents(path: Path) -> str:
    try:
        return _decoded(str(path), path.read_bytes())
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from None


def _decoded(source: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{source}: not UTF-8 text (byte {error.start})") from None


def parse_manifest(source: str, text: str) -> Iterator[Document]:
    """The documents of one file. Raises ManifestError."""
    if source.endswith(".json") or text.lstrip()[:1] == "{":
        try:
            yield from _json_documents(source, text)
            return
        except json.JSONDecodeError as error:
            if source.endswith(".json"):
                raise ManifestError(f"{source}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    yield from _yaml_documents(source, text)


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_documents(source: str, text: str) -> list[Document]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ManifestError(f"{source}: the key {twice!r} occurs twice in one object")
        return found

    def constant(name: str) -> NoReturn:
        raise ManifestError(f"{source}: {name} is not a JSON number")

    decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant)
    documents: list[Document] = []
    position = 0
    try:
        while text[position:].strip() if position else True:
            position += len(text[position:]) - len(text[position:].lstrip())
            value, position = decoder.raw_decode(text, position)
            documents.append(Document(source, len(documents) + 1, value))
    except RecursionError:
        raise ManifestError(f"{source}: nested too deeply") from None
    return documents


# --- YAML -----------------------------------------------------------------------------------------------------------


def _yaml_documents(source: str, text: str) -> Iterator[Document]:
    number = 1
    try:
        loader = _Loader(text)
        try:
            while loader.check_node():
                value = _Builder(source, number).build(loader.get_node())
                if value is not None:
                    yield Document(source, number, value)
                number += 1
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ManifestError(f"{source}: document {number}: {where}not valid YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise ManifestError(f"{source}: document {number}: not valid YAML: {error}") from None
    except RecursionError:
        raise ManifestError(f"{source}: document {number}: nested too deeply") from None


class _Builder:
    """Plain values from the nodes of one document. Aliases become copies, so that no two places share a value."""

    def __init__(self, source: str, number: int) -> None:
        self._source = source
        self._number = number
        self._values = 0
        self._open: set[int] = set()

    def _fail(self, node: yaml.Node, problem: str) -> NoReturn:
        mark = node.start_mark
        raise ManifestError(
            f"{self._source}: document {self._number}: line {mark.line + 1}, column {mark.column + 1}: {problem}"
        )

    def build(self, node: yaml.Node | None) -> Any:
        """The value of a node. Raises ManifestError."""
        if node is None:
            return None
        self._values += 1
        if self._values > MAX_VALUES:
            self._fail(node, f"more than {MAX_VALUES} values after aliases are expanded")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            self._fail(node, "an alias contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(child) for child in node.value]
            return self._mapping(node)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node) -> dict[str, Any]:
        found: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for parent in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    values = self.build(parent)
                    if not isinstance(values, dict):
                        self._fail(value_node, "<< needs a mapping")
                    inherited = {**values, **inherited}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._fail(key_node, "a key must be a plain word, not a list or a mapping")
            key = self._key(key_node)
            if key in found:
                self._fail(key_node, f"the key {key!r} occurs twice in one mapping")
            found[key] = self.build(value_node)
        return {**inherited, **found} if inherited else found

    def _key(self, node: yaml.ScalarNode) -> str:
        value = self._scalar(node)
        if isinstance(value, bool):
            return "true" if value else "false"
        return "null" if value is None else str(value)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        tag = node.tag.removeprefix(_TAG)
        if tag in ("str", "timestamp", "binary", "value", "merge"):
            return text
        if tag == "int":
            return self._integer(node, text)
        if tag == "float":
            return self._float(node, text)
        if tag == "bool":
            return text.lower() in _TRUE
        if tag == "null":
            return None
        return self._fail(node, f"the tag {node.tag!r} is not supported")

    def _float(self, node: yaml.Node, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.inf
        if not math.isfinite(value):
            self._fail(node, f"{text!r} is not a finite number")
        return value

    def _integer(self, node: yaml.Node, text: str) -> int:
        try:
            return _integer(text)
        except ValueError:
            return self._fail(node, f"{text[:60]!r} is not an integer")


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "")
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * (int(digits, 8) if len(digits) > 1 and digits.startswith("0") else int(digits))
