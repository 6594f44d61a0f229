"""Reading manifests: files, folders and standard input; YAML and JSON; several documents in one.

YAML is decoded as by the tools of Kubernetes: timestamps stay strings, keys become strings, `a: 1:30` is a string, and
a key that occurs twice is an error.
"""

from __future__ import annotations

import json
import math
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SUFFIXES = (".yaml", ".yml", ".json")
#: Values that the aliases of one document may expand to; a document with more is an attack or a mistake.
MAX_COPIES = 1_000_000

#: Digits of a number: above every quantity, and below the limit of the interpreter.
MAX_DIGITS = 1000

_TAG = "tag:yaml.org,2002:"
#: Escapes of half a surrogate pair, alone or not: such text is checked further.
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_INTEGER = re.compile(r"^[-+]?(0b[0-1_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_TRUE = frozenset({"yes", "true", "on"})


class ManifestDocument(NamedTuple):
    """One document as it was read."""

    #: The path as the user wrote it (or the file inside a folder); `-` is standard input.
    source: str
    #: Counted from 1 inside its file, empty documents included.
    number: int
    value: Any


class ManifestError(ValueError):
    """Unreadable input; the text names file and position."""


class _ManifestLoader(yaml.CSafeLoader):
    """The C parser with the scalar rules of Kubernetes."""


_ManifestLoader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in (_TAG + "timestamp", _TAG + "int", _TAG + "float")]
    for first, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_ManifestLoader.add_implicit_resolver(_TAG + "int", _INTEGER, list("-+0123456789"))
_ManifestLoader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def read_manifests(paths: Sequence[str], stdin: Any = None) -> Iterator[ManifestDocument]:
    """Every document of `paths` in order; folders give their manifests sorted by name. Raises ManifestError."""
    for name in paths:
        if name == "-":
            yield from parse_manifest("-", _decoded("-", _standard_input(stdin)))
            continue
        if not name:
            raise ManifestError('"": an empty name: expected a file, a folder or - for standard input')
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


def parse_manifest(source: str, text: str) -> Iterator[ManifestDocument]:
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


def _json_documents(source: str, text: str) -> list[ManifestDocument]:
    documents: list[ManifestDocument] = []

    def fail(problem: str) -> NoReturn:
        raise ManifestError(f"{source}: document {len(documents) + 1}: {problem}")

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
    number = 0
    try:
        loader = _ManifestLoader(text)
        try:
            while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
                if isinstance(event, yaml.DocumentStartEvent):
                    number += 1
                    value = _ManifestBuilder(source, number, loader).build(loader.get_event())
                    if value is not None:
                        yield ManifestDocument(source, number, value)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ManifestError(f"{source}: document {max(number, 1)}: {where}not valid YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise ManifestError(f"{source}: document {max(number, 1)}: not valid YAML: {error}") from None
    except RecursionError:
        raise ManifestError(f"{source}: document {number}: nested too deeply") from None


@lru_cache(maxsize=65536)
def _plain_tag(text: str) -> str:
    """Resolves an unquoted scalar; cached, as few words make up most of a manifest."""
    resolve: Callable[..., str] = _ManifestLoader("").resolve
    return resolve(yaml.ScalarNode, text, (True, False))


class _Open:
    """Placeholder of an anchored value that is still being read."""


class _ManifestBuilder:
    """Plain values from the events of one document. Aliases become copies, so that no two places share a value.

    Events, not nodes: the node composer of the C library has no limit to its depth, and ends the process.
    """

    def __init__(self, source: str, number: int, loader: _ManifestLoader) -> None:
        self._source = source
        self._number = number
        #: The stubs of the library do not type events.
        self._next: Callable[[], Any] = loader.get_event
        self._copies = 0
        self._anchors: dict[str, Any] = {}

    def _fail(self, event: Any, problem: str) -> NoReturn:
        mark = event.start_mark
        raise ManifestError(
            f"{self._source}: document {self._number}: line {mark.line + 1}, column {mark.column + 1}: {problem}"
        )

    def build(self, event: Any) -> Any:
        """The value that begins with `event`. Raises ManifestError."""
        if isinstance(event, yaml.AliasEvent):
            return self._copy(event, self._anchored(event))
        anchor: str | None = event.anchor
        if anchor is not None:
            self._anchors[anchor] = _Open
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, self._tag(event))
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, "seq")
            value = []
            while not isinstance(entry := self._next(), yaml.SequenceEndEvent):
                value.append(self.build(entry))
        else:
            self._check_tag(event, "map")
            value = self._mapping()
        if anchor is not None:
            self._anchors[anchor] = value
        return value

    def _anchored(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            self._fail(event, f"not valid YAML: found undefined alias {event.anchor!r}")
        value = self._anchors[event.anchor]
        if value is _Open:
            self._fail(event, "an alias contains itself")
        return value

    def _copy(self, event: Any, value: Any) -> Any:
        self._copies += 1
        if self._copies > MAX_COPIES:
            self._fail(event, f"aliases expand to more than {MAX_COPIES} values")
        if isinstance(value, dict):
            return {key: self._copy(event, entry) for key, entry in value.items()}
        return [self._copy(event, entry) for entry in value] if isinstance(value, list) else value

    def _mapping(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if isinstance(event, yaml.ScalarEvent) and self._tag(event) == "merge":
                following = self._next()
                values = self.build(following)
                for parent in values if isinstance(values, list) else [values]:
                    if not isinstance(parent, dict):
                        self._fail(following, "<< needs a mapping")
                    inherited = {**parent, **inherited}
                continue
            key = self._key(event)
            if key in found:
                self._fail(event, f"the key {key!r} occurs twice in one mapping")
            found[key] = self.build(self._next())
        return {**inherited, **found} if inherited else found

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
            self._fail(event, "a key must be a plain word, not a list or a mapping")
        value = self.build(event)
        if isinstance(value, dict | list):
            self._fail(event, "a key must be a plain word, not a list or a mapping")
        if isinstance(value, bool):
            return "true" if value else "false"
        return "null" if value is None else str(value)

    def _tag(self, event: Any) -> str:
        tag = event.tag
        if tag is None or tag == "!":
            tag = _plain_tag(event.value) if event.implicit[0] else _TAG + "str"
        return str(tag).removeprefix(_TAG)

    def _check_tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", _TAG + expected):
            self._fail(event, f"the tag {event.tag!r} is not supported")

    def _scalar(self, event: Any, tag: str) -> Any:
        text: str = event.value
        if tag in ("str", "timestamp", "binary", "value", "merge"):
            return text
        if tag == "int":
            return self._integer(event, text)
        if tag == "float":
            return self._float(event, text)
        if tag == "bool":
            return text.lower() in _TRUE
        if tag == "null":
            return None
        return self._fail(event, f"the tag {event.tag!r} is not supported")

    def _float(self, event: Any, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.inf
        if not math.isfinite(value):
            self._fail(event, f"{text!r} is not a finite number")
        return value

    def _integer(self, event: Any, text: str) -> int:
        if len(text) > MAX_DIGITS:
            self._fail(event, f"{text[:60]!r} is not an integer: too long")
        try:
            return _integer(text)
        except ValueError:
            return self._fail(event, f"{text[:60]!r} is not an integer")


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "")
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * (int(digits, 8) if len(digits) > 1 and digits.startswith("0") else int(digits))
