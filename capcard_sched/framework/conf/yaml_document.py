"""Reads the text of a scheduler-conf into plain values, with the line of each.

The subset of YAML of configuration files: maps, lists and scalars. Constructs that expand a small text into a large or
unexpected value are errors: aliases, merge keys, tags, several documents, deep nesting.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import yaml

from capcard_sched.framework.api.problems import Path, path_text, shown_text

#: Bytes; more than any ConfigMap holds.
MAX_BYTES: Final = 1 << 20
#: Levels; a scheduler-conf needs eight.
MAX_DEPTH: Final = 32

_TAG: Final = "tag:yaml.org,2002:"
_TEXT_TAGS: Final = frozenset({"str", "timestamp", "value"})

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(ValueError):
    """The text is not a document of that subset."""

    def __init__(self, message: str, line: int = 0) -> None:
        """`line` counts from 1; 0 is no particular line."""
        super().__init__(message)
        self.line = line


class YamlDocument(NamedTuple):
    """A document with its line numbers."""

    #: dict (with string keys), list, str, int, float, bool or None.
    value: Any
    #: Line of every map entry and list item, counted from 1.
    lines: dict[Path, int]


def read_document(text: str | bytes) -> YamlDocument:
    """The one document in `text`; a blank one has the value None. Raises DocumentError, and nothing else."""
    decoded = _decoded(text)
    try:
        _check_shape(decoded)
        loader = _Loader(decoded)
        try:
            node = loader.get_single_node()
            if node is None:
                return YamlDocument(None, {})
            lines: dict[Path, int] = {}
            return YamlDocument(_value(loader, node, (), lines), lines)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = len(decoded.rstrip().splitlines())  # an unterminated construct is reported behind the text
        raise DocumentError(f"not valid YAML: {_reason(error)}", min(mark.line + 1, last) if mark else 0) from None
    except yaml.reader.ReaderError as error:
        raise DocumentError(f"not valid YAML: {error.reason}") from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"not valid YAML: {shown_text(str(error))}") from None


def _decoded(text: str | bytes) -> str:
    if len(text) > MAX_BYTES:
        raise DocumentError(f"longer than {MAX_BYTES} bytes")
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DocumentError(f"character {error.start + 1} is half of a surrogate pair, not text") from None
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text (byte {error.start + 1}); is it a binary file?") from None


def _reason(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be parsed"
    if "cannot start any token" in problem:
        return f"{problem}; indent with spaces, and quote values that begin with @, ` or a tab"
    return f"{error.context}, {problem}" if error.context else problem


def _check_shape(text: str) -> None:
    """Rejects aliases and deep nesting in the flat stream of events: composing them recurses."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            name = shown_text(str(event.anchor))
            raise DocumentError(f"the alias *{name} is not accepted; write the value out", _line(event))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise DocumentError(f"nested more than {MAX_DEPTH} levels deep", _line(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _value(loader: Any, node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
    line = _line(node)
    lines.setdefault(path, line)
    kind = node.tag.removeprefix(_TAG)
    if isinstance(node, yaml.MappingNode) and kind == "map":
        return _map(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        return [_value(loader, item, (*path, index), lines) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        if kind in _TEXT_TAGS:
            return node.value
        if kind in {"int", "float", "bool", "null"}:
            try:
                return loader.construct_object(node)
            except (ValueError, KeyError):
                raise DocumentError(f"{_at(path)}{shown_text(node.value)} is not a valid {kind}", line) from None
    raise DocumentError(f"{_at(path)}the tag {shown_text(node.tag)} is not accepted", line)


def _map(loader: Any, node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = _line(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            raise DocumentError(f"{_at(path)}a key must be a plain word", line)
        if key_node.tag == _TAG + "merge":
            raise DocumentError(f"{_at(path)}the merge key << is not accepted; write the values out", line)
        key = key_node.value
        if key in found:
            first = lines[*path, key]
            raise DocumentError(f"{_at(path)}the key {shown_text(key)} occurs twice (first on line {first})", line)
        lines[*path, key] = line
        found[key] = _value(loader, value_node, (*path, key), lines)
    return found


def _line(place: yaml.Event | yaml.Node) -> int:
    return place.start_mark.line + 1 if place.start_mark is not None else 0


def _at(path: Path) -> str:
    return f"{path_text(path)}: " if path else ""
