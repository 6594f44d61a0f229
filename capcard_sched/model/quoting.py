"""Values and numbers in messages."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST: Final = 64


#: Characters that a terminal does not show as they are: controls, direction marks, other format characters, line and
#: paragraph separators, surrogates.
_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_ONE_OF_MANY: Final = re.compile(r"\b1 pods\b")
_HIDDEN_IN_LINES: Final = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def escaped(text: str, *, lines: bool = False) -> str:
    r"""Text for a terminal, log or event: characters that change how the rest is shown become `\x1b` or `\u202e`.

    With `lines`, line breaks and tabs stay: for text of ours, in which values from objects are escaped already.
    """
    if text.isprintable():  # faster than the search, and true of most texts
        return text
    return (_HIDDEN_IN_LINES if lines else _HIDDEN).sub(_code, text)


def escaped_json(text: str) -> str:
    """A JSON document with the same characters in the escapes of JSON: its values do not change."""
    return _HIDDEN_IN_LINES.sub(lambda match: "".join(f"\\u{unit:04x}" for unit in _units(match[0])), text)


def _code(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _units(character: str) -> tuple[int, ...]:
    code = ord(character)
    return (code,) if code < 0x10000 else (0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF))


def shortened(text: str, most: int = _MOST) -> str:
    """Escaped text of at most `most` characters; the rest is `...`."""
    return escaped(text if len(text) <= most else f"{text[:most]}...")


def quoted(text: str) -> str:
    """The text of `shortened` in single quotes."""
    return f"'{shortened(text)}'"


def shown(value: Any) -> str:
    """Formats a value for messages: short, with its type where the type matters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f'the string "{escaped(value)}"' if len(value) <= 60 else f'the string "{escaped(value[:57])}..."'
    return f"the number {value}"


def command(*words: str) -> str:
    """A command for a POSIX shell: each word that the shell would split or expand is quoted."""
    return shlex.join(words)


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`: the one place that chooses the form of a noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def with_singulars(text: str) -> str:
    """A text of an event, which counts `1 pods`, with `1 pod`."""
    return _ONE_OF_MANY.sub("1 pod", text)


def brief(names: Sequence[str], most: int = 4) -> str:
    """The first names of a list and the number of the others: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
