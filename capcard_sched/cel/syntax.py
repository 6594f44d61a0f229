"""Parses CEL expressions to syntax trees, which are nested tuples of a kind and its parts."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, TypeAlias

from capcard_sched.cel.values import EvaluationError, checked_int, checked_uint
from capcard_sched.model.quoting import quoted

#: Characters of an expression, and levels of nesting.
MAX_LENGTH: Final = 10 * 1024
MAX_DEPTH: Final = 64
#: Digits of an integer; the interpreter limits conversions.
_MAX_DIGITS: Final = 64


class CompileError(ValueError):
    """An expression is no valid CEL."""


class SyntaxNode(NamedTuple):
    """`kind` is one of: literal, name, select, index, call, method, list, map, and, or, not, negate, ?:, operator.

    select: (operand, field, optional, test); index: (operand, index, optional); call: (name, arguments);
    method: (operand, name, arguments); list: ((element, optional), ...); map: ((key, value, optional), ...).
    """

    kind: str
    parts: tuple[Any, ...]
    position: int


Token: TypeAlias = tuple[str, str, int]

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f]+|//[^\n]*)
    |(?P<float>(?:[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?))
    |(?P<int>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
    |(?P<string>(?:[rR][bB]?|[bB][rR]?)?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''
        |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<quoted>`[A-Za-z0-9_.\-/ ]+`)
    |(?P<op>\.\?|\[\?|\{\?|&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_RAW = re.compile(r"([rR][bB]?|[bB][rR]?)?(\"\"\"|'''|\"|')(.*)\2", re.DOTALL)
_RAW_STRING = re.compile(
    r"""(?:[rR][bB]?|[bB][rR])(?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n]*"|'[^'\n]*')""",
    re.DOTALL,
)
_RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
#: Binary operators by precedence, the weakest first.
_LEVELS: Final = (
    frozenset({"||"}),
    frozenset({"&&"}),
    frozenset({"<", "<=", ">", ">=", "==", "!=", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)
_STRENGTH: Final = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}
_END: Token = ("end", "", -1)
_SIMPLE: Final = dict(zip("abfnrtv\\\"'`?", "\a\b\f\n\r\t\v\\\"'`?", strict=True))
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})"
    r"|([0-3][0-7]{2})|(.))",
    re.DOTALL,
)


def parse(text: str) -> SyntaxNode:
    """The syntax tree of an expression. Cost: linear in the length. Raises CompileError."""
    if len(text) > MAX_LENGTH:
        raise CompileError(f"the expression has {len(text)} characters, more than {MAX_LENGTH}")
    return _ExpressionParser(_tokens(text)).whole()


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = _RAW_STRING.match(text, position) or _TOKEN.match(text, position)
        if match is None:
            raise CompileError(f"syntax error at {position}: {quoted(text[position : position + 12])}")
        kind = match.lastgroup or "string"
        if kind != "space":
            found.append((kind, match[0], position))
        position = match.end()
    return found


def _unquoted(text: str, position: int) -> str | bytes:
    """The value of a string or bytes literal."""
    match = _RAW.fullmatch(text)
    if match is None:
        raise CompileError(f"syntax error at {position}: {quoted(text)}")
    prefix, body = (match[1] or "").lower(), match[3]
    is_bytes = "b" in prefix
    if "r" in prefix:
        return body.encode() if is_bytes else body
    parts: list[str | bytes] = []
    end = 0
    for escape in _ESCAPE.finditer(body):
        parts += [body[end : escape.start()], _unescaped(escape, position, is_bytes=is_bytes)]
        end = escape.end()
    parts.append(body[end:])
    if is_bytes:
        return b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return "".join(str(part) for part in parts)


def _unescaped(escape: re.Match[str], position: int, *, is_bytes: bool) -> str | bytes:
    hexadecimal = escape[1] or escape[2]
    if hexadecimal or escape[5]:
        number = int(hexadecimal, 16) if hexadecimal else int(escape[5], 8)
        return bytes([number]) if is_bytes else chr(number)
    code = escape[3] or escape[4]
    if code:
        number = int(code, 16)
        if is_bytes or number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise CompileError(f"syntax error at {position}: invalid escape {escape[0]}")
        return chr(number)
    if escape[6] not in _SIMPLE:
        raise CompileError(f"syntax error at {position}: invalid escape {quoted(escape[0])}")
    return _SIMPLE[escape[6]]


class _ExpressionParser:
    """Recursive descent; binary operators by precedence climbing."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> SyntaxNode:
        """The tree of all tokens."""
        found = self._expression()
        if self._peek() is not _END:
            raise self._error()
        return found

    def _peek(self) -> Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else _END

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _accept(self, text: str) -> bool:
        token = self._peek()
        if token[1] != text or token[0] not in ("op", "name"):
            return False
        self._next += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._error(f"expected {text}")

    def _error(self, detail: str = "") -> CompileError:
        _, text, position = self._peek()
        place = f"at {position}: {quoted(text)}" if text else "at the end"
        return CompileError(f"syntax error {place}{', ' + detail if detail else ''}")

    def _expression(self) -> SyntaxNode:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CompileError(f"the expression has more than {MAX_DEPTH} levels")
        condition = self._binary(0)
        if self._accept("?"):
            position = self._tokens[self._next - 1][2]
            chosen = self._binary(0)
            self._expect(":")
            condition = SyntaxNode("?:", (condition, chosen, self._expression()), position)
        self._depth -= 1
        return condition

    def _binary(self, weakest: int) -> SyntaxNode:
        left = self._unary()
        while True:
            _, operator, position = self._peek()
            strength = _STRENGTH.get(operator, -1) if self._peek()[0] in ("op", "name") else -1
            if strength < weakest:
                return left
            self._next += 1
            right = self._binary(strength + 1)
            if operator in ("&&", "||"):
                kind = "and" if operator == "&&" else "or"
                parts = left.parts if left.kind == kind else (left,)  # flat: chains may be long
                left = SyntaxNode(kind, (*parts, right), position)
            else:
                left = SyntaxNode(operator, (left, right), position)
                self._deepen(left)

    def _deepen(self, node: SyntaxNode) -> None:
        """Limits the depth of trees that grow to the left: `a + b + ...`, `a.b.c...`."""
        depth: int = 0
        while node.kind not in ("literal", "name", "call", "list", "map", "and", "or"):
            node, depth = node.parts[0], depth + 1
            if depth > 2 * MAX_DEPTH:
                raise CompileError(f"the expression has more than {2 * MAX_DEPTH} levels")

    def _unary(self) -> SyntaxNode:
        kind, text, position = self._peek()
        if kind != "op" or text not in ("!", "-"):
            return self._member()
        count = 0
        while self._accept(text):
            count += 1
        if text == "-" and self._peek()[0] in ("int", "float"):
            count -= 1
            following, number, place = self._peek()
            self._tokens[self._next] = following, "-" + number, place
        operand = self._member() if self._peek()[1] not in ("!", "-") else self._unary()
        return SyntaxNode("not" if text == "!" else "negate", (operand,), position) if count % 2 else operand

    def _member(self) -> SyntaxNode:
        node = self._primary()
        while True:
            position = self._peek()[2]
            if self._accept(".?"):
                node = SyntaxNode("select", (node, self._field(), True, False), position)
            elif self._accept("."):
                field = self._field()
                if self._accept("("):
                    node = SyntaxNode("method", (node, field, self._arguments(")")), position)
                else:
                    node = SyntaxNode("select", (node, field, False, False), position)
            elif self._peek()[1] in ("[", "[?") and self._peek()[0] == "op":
                optional = self._take()[1] == "[?"
                index = self._expression()
                self._expect("]")
                node = SyntaxNode("index", (node, index, optional), position)
            else:
                return node
            self._deepen(node)

    def _field(self) -> str:
        kind, text, _ = self._peek()
        if kind not in ("name", "quoted"):
            raise self._error("expected a name")
        self._next += 1
        return text.strip("`")

    def _arguments(self, end: str) -> tuple[SyntaxNode, ...]:
        found: list[SyntaxNode] = []
        while not self._accept(end):
            found.append(self._expression())
            if not self._accept(","):
                self._expect(end)
                break
        return tuple(found)

    def _primary(self) -> SyntaxNode:
        kind, text, position = self._peek()
        if kind == "op" and text in ("(", "[", "[?", "{", "{?"):
            return self._grouped(text, position)
        leading_dot = self._accept(".")
        kind, text, position = self._take()
        if kind == "name" and text not in _RESERVED and text != "in":
            if text in ("true", "false", "null"):
                return SyntaxNode("literal", ({"true": True, "false": False, "null": None}[text],), position)
            if self._accept("("):
                return SyntaxNode("call", (text, self._arguments(")")), position)
            return SyntaxNode("name", (text,), position)
        if leading_dot or kind not in ("int", "float", "string"):
            self._next -= 1
            raise self._error()
        return SyntaxNode("literal", (_literal(kind, text, position),), position)

    def _grouped(self, text: str, position: int) -> SyntaxNode:
        if text == "(":
            self._take()
            found = self._expression()
            self._expect(")")
            return found
        if text[0] == "[":
            return SyntaxNode("list", tuple(self._elements(text, "]", is_map=False)), position)
        return SyntaxNode("map", tuple(self._elements(text, "}", is_map=True)), position)

    def _elements(self, opening: str, end: str, *, is_map: bool) -> list[tuple[Any, ...]]:
        """The elements of a list or map literal; `[?` and `{?` begin one whose first element is optional."""
        self._take()
        found: list[tuple[Any, ...]] = []
        optional = len(opening) == 2
        while optional or not self._accept(end):
            optional = optional or self._accept("?")
            first = self._expression()
            if is_map:
                self._expect(":")
                found.append((first, self._expression(), optional))
            else:
                found.append((first, optional))
            optional = False
            if not self._accept(","):
                self._expect(end)
                break
        return found


def _literal(kind: str, text: str, position: int) -> Any:
    if kind == "string":
        return _unquoted(text, position)
    if kind == "float":
        return float(text)
    digits = text.rstrip("uU")
    if len(digits) > _MAX_DIGITS:
        raise CompileError(f"syntax error at {position}: {quoted(text)}: integer overflow")
    number = int(digits, 16) if "x" in digits else int(digits)
    try:
        return checked_int(number) if digits == text else checked_uint(number)
    except EvaluationError as error:
        raise CompileError(f"syntax error at {position}: {quoted(text)}: {error}") from None
