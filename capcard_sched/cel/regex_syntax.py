"""Parses regular expressions in RE2 syntax to the states of an automaton."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from capcard_sched.cel.values import EvaluationError
from capcard_sched.model.quoting import quoted

#: Whether a character belongs to a set.
Chars: TypeAlias = Callable[[str], bool]
#: States of an automaton; repetitions multiply them.
MAX_STATES: Final = 2000
_MAX_REPEAT: Final = 1000
_MAX_DEPTH: Final = 50

_DIGIT = frozenset("0123456789")
WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPACE = frozenset("\t\n\f\r ")
_CLASSES: Final = {"d": _DIGIT, "w": WORD, "s": _SPACE}
_POSIX: Final[dict[str, Chars]] = {
    "alpha": lambda char: char.isascii() and char.isalpha(),
    "digit": _DIGIT.__contains__,
    "alnum": lambda char: char.isascii() and char.isalnum(),
    "upper": lambda char: "A" <= char <= "Z",
    "lower": lambda char: "a" <= char <= "z",
    "space": (_SPACE | {"\v"}).__contains__,
    "word": WORD.__contains__,
    "xdigit": frozenset("0123456789abcdefABCDEF").__contains__,
    "punct": lambda char: "!" <= char <= "~" and not char.isalnum(),
}
_ESCAPES: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class State(NamedTuple):
    """`chars`: the state consumes one character; else it splits to `out`, or asserts a position first."""

    chars: Chars | None
    out: list[int]
    #: One of ^ $ b B A z; "" without an assertion.
    assertion: str = ""


class Piece(NamedTuple):
    """Linked states."""

    start: int
    #: The exits of states that the next piece continues.
    exits: list[tuple[int, int]]


class RegexParser:
    """Builds the states of a pattern while it parses."""

    def __init__(self, text: str, states: list[State]) -> None:
        self._text = text
        self._states = states
        self._place = 0
        self._depth = 0
        #: Flags i (case-insensitive), m (^ and $ at lines), s (. matches a line feed), U (lazy).
        self._flags = frozenset[str]()

    def _error(self, detail: str) -> EvaluationError:
        return EvaluationError(f"invalid regular expression {quoted(self._text)}: {detail}")

    def state(self, chars: Chars | None, out: list[int], assertion: str = "") -> int:
        """Adds a state. Raises EvaluationError beyond MAX_STATES."""
        if len(self._states) >= MAX_STATES:
            raise self._error(f"more than {MAX_STATES} states")
        self._states.append(State(chars, out, assertion))
        return len(self._states) - 1

    def _peek(self) -> str:
        return self._text[self._place] if self._place < len(self._text) else ""

    def _take(self, expected: str = "") -> str:
        char = self._peek()
        if not char or (expected and char != expected):
            raise self._error(f"missing {expected}" if expected else "it ends early")
        self._place += 1
        return char

    def whole(self) -> Piece:
        """The piece of the whole pattern."""
        piece = self._alternatives()
        if self._peek():
            raise self._error("unexpected )")
        return piece

    def _empty(self, assertion: str = "") -> Piece:
        state = self.state(None, [-1], assertion)
        return Piece(state, [(state, 0)])

    def _join(self, pieces: list[Piece]) -> Piece:
        if not pieces:
            return self._empty()
        for before, after in itertools.pairwise(pieces):
            for state, place in before.exits:
                self._states[state].out[place] = after.start
        return Piece(pieces[0].start, pieces[-1].exits)

    def _alternatives(self) -> Piece:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} levels")
        flags = self._flags
        pieces = [self._sequence()]
        while self._peek() == "|":
            self._take()
            pieces.append(self._sequence())
        self._flags = flags
        self._depth -= 1
        if len(pieces) == 1:
            return pieces[0]
        split = self.state(None, [piece.start for piece in pieces])
        return Piece(split, [each for piece in pieces for each in piece.exits])

    def _sequence(self) -> Piece:
        pieces: list[Piece] = []
        while self._peek() not in ("", "|", ")"):
            begin, flags = self._place, self._flags
            pieces.append(self._repeated(self._atom(), begin, flags))
        return self._join(pieces)

    def _repeated(self, piece: Piece, begin: int, flags: frozenset[str]) -> Piece:
        end = self._place
        repeated = False
        while (bounds := self._bounds()) is not None:
            if repeated and bounds:
                raise self._error("a repetition of a repetition")
            repeated = True
            low, high = bounds
            lazy = self._peek() == "?"
            if lazy:
                self._take()
            piece = self._times(piece, low, high, lazy=lazy != ("U" in flags), source=(begin, end), flags=flags)
        return piece

    def _bounds(self) -> tuple[int, int | None] | None:
        """The bounds of a repetition at the current place; None without one."""
        char = self._peek()
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if char in simple:
            self._take()
            return simple[char]
        if char != "{":
            return None
        end = self._text.find("}", self._place)
        inner = self._text[self._place + 1 : end] if end > 0 else ""
        low, comma, high = inner.partition(",")
        if not (low.isdecimal() and low.isascii() and (not high or (high.isdecimal() and high.isascii()))):
            return None  # a literal brace
        if max(len(low), len(high)) > 4:
            raise self._error("invalid repeat count")
        bounds = int(low), (int(high) if high else None) if comma else int(low)
        if max(bounds[0], bounds[1] or 0) > _MAX_REPEAT or (bounds[1] is not None and bounds[1] < bounds[0]):
            raise self._error("invalid repeat count")
        self._place = end + 1
        return bounds

    def _again(self, source: tuple[int, int], flags: frozenset[str]) -> Piece:
        """A further copy of an atom: its text is parsed once more."""
        place, kept = self._place, self._flags
        self._place, self._flags = source[0], flags
        piece = self._atom()
        self._place, self._flags = place, kept
        return piece

    def _times(
        self, piece: Piece, low: int, high: int | None, *, lazy: bool, source: tuple[int, int], flags: frozenset[str]
    ) -> Piece:
        copies = [piece]

        def one() -> Piece:
            return copies.pop() if copies else self._again(source, flags)

        pieces = [one() for _ in range(low)]
        if high is None:
            looped = one()
            split = self.state(None, [-1, looped.start] if lazy else [looped.start, -1])
            for state, place in looped.exits:
                self._states[state].out[place] = split
            pieces.append(Piece(split, [(split, 0 if lazy else 1)]))
        exits: list[tuple[int, int]] = []
        for _ in range((high or 0) - low):
            optional = one()
            split = self.state(None, [-1, optional.start] if lazy else [optional.start, -1])
            exits.append((split, 0 if lazy else 1))
            pieces.append(Piece(split, optional.exits))
        joined = self._join(pieces)
        return Piece(joined.start, [*joined.exits, *exits])

    def _chars(self, chars: Chars) -> Piece:
        state = self.state(chars, [-1])
        return Piece(state, [(state, 0)])

    def _one(self, char: str) -> Piece:
        if "i" in self._flags:
            folded = char.casefold()
            return self._chars(lambda each: each.casefold() == folded)
        return self._chars(char.__eq__)

    def _atom(self) -> Piece:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._chars(self._set())
        if char == ".":
            return self._chars((lambda _: True) if "s" in self._flags else (lambda each: each != "\n"))
        if char in "^$":
            multiline = "m" in self._flags
            return self._empty(char if multiline else "A" if char == "^" else "z")
        if char == "\\":
            return self._escaped()
        if char in "*+?":
            raise self._error(f"{char} repeats nothing")
        return self._one(char)

    def _group(self) -> Piece:
        if self._peek() == "?":
            self._take()
            if self._peek() in ("P", "<"):
                if self._take() == "P":
                    self._take("<")
                while self._take() != ">":
                    pass
            else:
                text = ""
                while self._peek() not in (":", ")"):
                    text += self._take()
                self._set_flags(text)
                if self._take() == ")":
                    return self._empty()
        flags = self._flags
        piece = self._alternatives()
        self._flags = flags
        self._take(")")
        return piece

    def _set_flags(self, text: str) -> None:
        on, _, off = text.partition("-")
        if not set(on + off) <= set("imsU") or text.endswith("-"):
            raise self._error(f"unknown group (?{text}")
        self._flags = (self._flags | set(on)) - set(off)

    def _escaped(self) -> Piece:
        char = self._peek()
        if char in "bBAz" and char:
            self._take()
            return self._empty(char)
        if char == "Q":
            end = self._text.find("\\E", self._place)
            literal = self._text[self._place + 1 : end if end >= 0 else len(self._text)]
            self._place = end + 2 if end >= 0 else len(self._text)
            return self._join([self._one(each) for each in literal])
        chars = self._class()
        return self._chars(chars) if chars is not None else self._one(self._escaped_char())

    def _class(self) -> Chars | None:
        r"""The set of an escape such as \d at the current place, behind the backslash."""
        char = self._peek()
        known = _CLASSES.get(char.lower()) if char else None
        if known is not None:
            self._take()
            return known.__contains__ if char.islower() else lambda each: each not in known
        if char in ("p", "P"):
            self._take()
            name = self._take()
            if name == "{":
                end = self._text.find("}", self._place)
                name, self._place = self._text[self._place : end], end + 1
            return self._unicode_class(name, negated=char == "P")
        return None

    def _unicode_class(self, name: str, *, negated: bool) -> Chars:
        negated, name = negated != name.startswith("^"), name.removeprefix("^")
        if name[:1] not in ("L", "M", "N", "P", "S", "Z", "C") or len(name) > 2:
            raise self._error(f"unknown class \\p{{{name}}}")
        return lambda char: unicodedata.category(char).startswith(name) != negated

    def _escaped_char(self) -> str:
        char = self._take()
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            digits = self._take()
            if digits == "{":
                end = self._text.find("}", self._place)
                digits, self._place = self._text[self._place : end], end + 1
            else:
                digits += self._take()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise self._error("invalid \\x") from None
        if char.isalnum():
            raise self._error(f"unknown escape \\{char}")
        return char

    def _set(self) -> Chars:
        """The set of `[...]`, behind its bracket."""
        negated = self._peek() == "^"
        if negated:
            self._take()
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        classes: list[Chars] = []
        first = True
        while first or self._peek() != "]":
            first = False
            if self._text.startswith("[:", self._place) and ":]" in self._text[self._place :]:
                end = self._text.index(":]", self._place)
                name, self._place = self._text[self._place + 2 : end], end + 2
                if name.removeprefix("^") not in _POSIX:
                    raise self._error(f"unknown class [:{name}:]")
                known = _POSIX[name.removeprefix("^")]
                classes.append(known if name[0] != "^" else lambda char, known=known: not known(char))  # type: ignore[misc]
                continue
            low = self._take()
            if low == "\\":
                chars = self._class()
                if chars is not None:
                    classes.append(chars)
                    continue
                low = self._escaped_char()
            if self._peek() == "-" and self._text[self._place + 1 : self._place + 2] not in ("]", ""):
                self._take()
                high = self._take()
                if high == "\\":
                    high = self._escaped_char()
                if high < low:
                    raise self._error(f"bad range {low}-{high}")
                ranges.append((low, high))
            else:
                singles.add(low)
        self._take("]")
        folds = "i" in self._flags

        def matches(char: str) -> bool:
            forms = {char, char.lower(), char.upper()} if folds else (char,)
            return negated != any(
                form in singles
                or any(low <= form <= high for low, high in ranges)
                or any(test(form) for test in classes)
                for form in forms
            )

        return matches
