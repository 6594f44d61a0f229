"""Reads YAML into plain values, with positions: manifests, scheduler-confs and ConfigMaps.

Scalars follow the tools of Kubernetes: timestamps stay strings, keys become strings, `a: 1:30` is a string, and a key
that occurs twice is an error. Strict reading is for configuration files: one document, without constructs that expand a
small text into a large or unexpected value (aliases, merge keys, deep nesting).
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import yaml

from capcard_sched.model.quoting import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Bytes of a configuration; more than any ConfigMap holds.
MAX_BYTES: Final = 1 << 20
#: Values that the aliases of one document may expand to; a document with more is an attack or a mistake.
MAX_COPIES: Final = 1_000_000
#: Digits of a number: above every quantity, and below the limit of the interpreter.
MAX_DIGITS: Final = 1000
#: Levels in strict mode; a scheduler-conf needs eight.
MAX_DEPTH: Final = 32

#: Keys and indices from the top of a document to one of its entries.
Steps: TypeAlias = tuple[str | int, ...]

_TAG: Final = "tag:yaml.org,2002:"
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_INTEGER = re.compile(r"^[-+]?(0b[0-1_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
#: `.inf` and `.nan`, which Python writes without the dot.
_NOT_FINITE = re.compile(r"\.(inf|nan)", re.IGNORECASE)
_TRUE: Final = frozenset({"yes", "true", "on"})


class YamlError(ValueError):
    """Text that is not accepted."""

    def __init__(self, message: str, line: int = 0, column: int = 0, document: int = 1) -> None:
        """All numbers count from 1; line 0 is no particular place."""
        super().__init__(message)
        self.document = document
        self.line = line
        self.column = column


class YamlDocument(NamedTuple):
    """One document of a text."""

    #: Counted from 1, empty documents included.
    number: int
    #: dict (with string keys), list, str, int, float, bool or None.
    value: Any
    #: Line of every map entry and list item, counted from 1; empty unless strict.
    lines: dict[Steps, int]


class _Loader(yaml.CSafeLoader):
    """The C parser with the scalar rules of Kubernetes."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in (_TAG + "timestamp", _TAG + "int", _TAG + "float")]
    for first, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TAG + "int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def read_yaml(text: str, *, strict: bool = False) -> Iterator[YamlDocument]:
    """The documents of `text` in order, empty ones included. Raises YamlError, and nothing else."""
    number = 0
    try:
        loader = _Loader(text)
        try:
            while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
                if isinstance(event, yaml.DocumentStartEvent):
                    number += 1
                    if strict and number > 1:
                        raise YamlError("expected a single document, found another", *_place(event.start_mark))
                    builder = _Builder(number, loader, strict=strict)
                    yield YamlDocument(number, builder.build(loader.get_event(), ()), builder.lines)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line, column = _place(error.problem_mark or error.context_mark)
        written = text.rstrip().splitlines()
        if line > len(written) > 0:  # an unterminated construct is reported behind the text
            line, column = len(written), len(written[-1]) + 1
        raise YamlError(f"not valid YAML: {_reason(error)}", line, column, max(number, 1)) from None
    except yaml.reader.ReaderError as error:
        raise YamlError(f"not valid YAML: {error.reason}", document=max(number, 1)) from None
    except yaml.YAMLError as error:
        raise YamlError(f"not valid YAML: {error}", document=max(number, 1)) from None
    except RecursionError:
        raise YamlError("nested too deeply", document=max(number, 1)) from None


def read_document(text: str | bytes) -> YamlDocument:
    """The one document in `text`, strictly; a blank one has the value None. Raises YamlError, and nothing else."""
    if len(text) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES} bytes")
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise YamlError(f"character {error.start + 1} is half of a surrogate pair, not text") from None
        decoded = text.removeprefix("\ufeff")
    else:
        try:
            decoded = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise YamlError(f"not UTF-8 text (byte {error.start + 1}); is it a binary file?") from None
    documents = list(read_yaml(decoded, strict=True))
    return documents[0] if documents else YamlDocument(1, None, {})


def _place(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)


def _reason(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be parsed"
    if "cannot start any token" in problem:
        return f"{problem}; indent with spaces, and quote values that begin with @, ` or a tab"
    return f"{error.context}, {problem}" if error.context else problem


# Computed 3.1 us, kept 0.03 (benchmarks/caches.py).
@lru_cache(maxsize=65536)
def _plain_tag(text: str) -> str:
    """Resolves an unquoted scalar; cached, as few words make up most of a manifest."""
    resolve: Callable[..., str] = _Loader("").resolve
    return resolve(yaml.ScalarNode, text, (True, False))


class _Open:
    """Placeholder of an anchored value that is still being read."""


class _Builder:
    """Plain values from the events of one document. Aliases become copies, so that no two places share a value.

    Events, not nodes: the node composer of the C library has no limit to its depth, and ends the process.
    """

    def __init__(self, number: int, loader: _Loader, *, strict: bool) -> None:
        self._number = number
        self._strict = strict
        #: The stubs of the library do not type events.
        self._next: Callable[[], Any] = loader.get_event
        self._copies = 0
        self._anchors: dict[str, Any] = {}
        self.lines: dict[Steps, int] = {}

    def _fail(self, event: Any, problem: str) -> NoReturn:
        raise YamlError(problem, *_place(event.start_mark), self._number)

    def build(self, event: Any, steps: Steps) -> Any:
        """The value that begins with `event`, at `steps` of the document. Raises YamlError."""
        if self._strict:
            self.lines.setdefault(steps, event.start_mark.line + 1)
            if len(steps) > MAX_DEPTH:
                self._fail(event, f"nested more than {MAX_DEPTH} levels deep")
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
                value.append(self.build(entry, (*steps, len(value)) if self._strict else steps))
        else:
            self._check_tag(event, "map")
            value = self._mapping(steps)
        if anchor is not None:
            self._anchors[anchor] = value
        return value

    def _anchored(self, event: Any) -> Any:
        if self._strict:
            self._fail(event, f"the alias *{shortened(event.anchor)} is not accepted; write the value out")
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

    def _mapping(self, steps: Steps) -> dict[str, Any]:
        found: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if isinstance(event, yaml.ScalarEvent) and self._tag(event) == "merge":
                if self._strict:
                    self._fail(event, "the merge key << is not accepted; write the values out")
                following = self._next()
                values = self.build(following, steps)
                for parent in values if isinstance(values, list) else [values]:
                    if not isinstance(parent, dict):
                        self._fail(following, "<< needs a mapping")
                    inherited = {**parent, **inherited}
                continue
            key = self._key(event, steps)
            if key in found:
                first = f" (first on line {self.lines[*steps, key]})" if self._strict else ""
                self._fail(event, f"the key {shortened(key)!r} occurs twice in one mapping{first}")
            inner = (*steps, key) if self._strict else steps
            if self._strict:
                self.lines[inner] = event.start_mark.line + 1
            found[key] = self.build(self._next(), inner)
        return {**inherited, **found} if inherited else found

    def _key(self, event: Any, steps: Steps) -> str:
        if not isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
            self._fail(event, "a key must be a plain word, not a list or a mapping")
        value = self.build(event, steps)
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
            self._fail(event, f"the tag {shortened(event.tag)!r} is not supported")

    def _scalar(self, event: Any, tag: str) -> Any:
        text: str = event.value
        if tag in ("str", "timestamp", "binary", "value", "merge"):
            return text
        if tag == "bool":
            return text.lower() in _TRUE
        if tag == "null":
            return None
        if tag not in ("int", "float"):
            self._fail(event, f"the tag {shortened(event.tag)!r} is not supported")
        if tag == "int" and len(text) > MAX_DIGITS:
            self._fail(event, f"{text[:60]!r} is not an integer: too long")
        value: int | float | None
        try:
            value = _integer(text) if tag == "int" else float(_NOT_FINITE.sub(r"\1", text))
        except ValueError:
            value = None
        # The arguments of a configuration have errors of their own for infinite numbers.
        if value is None or not (self._strict or math.isfinite(value)):
            self._fail(event, f"{text[:60]!r} is not {'an integer' if tag == 'int' else 'a finite number'}")
        return value


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "")
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * (int(digits, 8) if len(digits) > 1 and digits.startswith("0") else int(digits))
