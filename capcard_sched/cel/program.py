"""Compiles CEL expressions to closures and evaluates them with a limit of steps.

Compilation checks names, numbers of arguments, and the types that are known without values, as cel-go does. `&&`, `||`
and the macros `all` and `exists` absorb errors of one side if the other decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.cel import regex
from capcard_sched.cel.frame import MAX_STEPS, Frame
from capcard_sched.cel.library import FUNCTIONS, METHODS, call
from capcard_sched.cel.macros import COMPREHENSIONS, comprehension
from capcard_sched.cel.operators import BINARY, check_binary
from capcard_sched.cel.static_types import (
    BOOL,
    Static,
    accepts,
    base,
    element,
    field_of,
    joined,
    no_overload,
    result_of,
)
from capcard_sched.cel.syntax import CompileError, parse
from capcard_sched.cel.values import (
    MAPS,
    CostError,
    EvaluationError,
    Maybe,
    TypeName,
    checked_int,
    is_set,
    look_up,
    map_key,
    maybe,
    member,
    type_name,
)
from capcard_sched.model.quoting import quoted
from capcard_sched.model.text_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.cel.frame import Code, Typed
    from capcard_sched.cel.syntax import SyntaxNode

_TYPES: Final = {
    name: TypeName(name) for name in ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "type")
} | {"null_type": TypeName("null_type")}


class Program:
    """A compiled expression whose result is a bool."""

    def __init__(self, text: str, variables: Mapping[str, Static]) -> None:
        """`variables`: their names with what is known of their types, in the order of evaluation.

        Raises CompileError.
        """
        compiler = Compiler(variables)
        self._code, static = compiler.compile(parse(text))
        if static not in (None, BOOL):
            raise CompileError("must evaluate to bool")
        self._nodes = compiler.nodes
        self._free = [None] * (compiler.most - len(variables))

    def evaluate(self, *values: Any) -> bool:
        """The result for the values of the variables. Raises EvaluationError, and no other exception."""
        result, _ = self.measured(*values)
        if isinstance(result, EvaluationError):
            raise result
        return result

    def measured(self, *values: Any) -> tuple[bool | EvaluationError, int]:
        """The result or the error, and an upper bound on the steps that it took: each node counts, evaluated or not."""
        frame = Frame([*values, *self._free])
        result: Any
        try:
            result = self._code(frame)
            if type(result) is not bool:
                result = EvaluationError(f"the result is of type {type_name(result)}, not bool")
        except EvaluationError as error:
            result = error.with_traceback(None)
        except (RecursionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            result = EvaluationError(f"{type(error).__name__}: {error}")
        return result, self._nodes + min(MAX_STEPS, MAX_STEPS - frame.steps)


class Compiler:
    """Compiles the nodes of one expression. Each variable has a slot of the frame."""

    def __init__(self, variables: Mapping[str, Static]) -> None:
        self._scope: dict[str, tuple[int, Static]] = {
            name: (slot, static) for slot, (name, static) in enumerate(variables.items())
        }
        self._used = len(variables)
        #: Slots of a frame.
        self.most = self._used
        #: Nodes compiled so far.
        self.nodes = 0

    def compile(self, node: SyntaxNode) -> Typed:
        """Raises CompileError."""
        self.nodes += 1
        method = getattr(self, _BY_KIND.get(node.kind, "_operator"))
        found: Typed = method(node)
        return found

    def bound(self, names: Sequence[tuple[str, Static]], body: SyntaxNode) -> tuple[list[int], Code, Static]:
        """Compiles a body with further variables; returns their slots as well."""
        kept = self._scope
        slots = list(range(self._used, self._used + len(names)))
        self._scope = {**kept, **{name: (slot, static) for slot, (name, static) in zip(slots, names, strict=True)}}
        self._used += len(names)
        self.most = max(self.most, self._used)
        code, static = self.compile(body)
        self._used -= len(names)
        self._scope = kept
        return slots, code, static

    def variable(self, node: SyntaxNode) -> str:
        """The name that a macro binds. Raises CompileError for any other node."""
        if node.kind != "name":
            raise CompileError(f"at {node.position}: a macro needs the name of a variable")
        return str(node.parts[0])

    def _literal(self, node: SyntaxNode) -> Typed:
        value = node.parts[0]
        return (lambda _: value), type(value)

    def _name(self, node: SyntaxNode) -> Typed:
        name = node.parts[0]
        if name in self._scope:
            slot, static = self._scope[name]
            return (lambda frame: frame.slots[slot]), static
        if name in _TYPES:
            value = _TYPES[name]
            return (lambda _: value), TypeName
        raise CompileError(f"at {node.position}: undeclared reference to {quoted(name)}")

    def _select(self, node: SyntaxNode) -> Typed:
        operand, field, optional, _ = node.parts
        code, static = self.compile(operand)
        known = field_of(static, field, node.position)

        def select(frame: Frame) -> Any:
            value = code(frame)
            if type(value) is Maybe:
                return look_up(value.value, field) if value.present else value
            found = member(value, field)
            if optional:
                return found
            if not found.present:
                raise EvaluationError(f"no such key: {field}")
            return found.value

        return select, Maybe if optional or base(static) is Maybe else known

    def _index(self, node: SyntaxNode) -> Typed:
        operand, index, optional = node.parts
        code, static = self.compile(operand)
        index_code, _ = self.compile(index)
        if base(static) not in (None, list, dict, Maybe):
            raise no_overload("_[_]", node.position)

        def get(frame: Frame) -> Any:
            value, key = code(frame), index_code(frame)
            if type(value) is Maybe:
                return look_up(value.value, key) if value.present else value
            found = look_up(value, key)
            if optional:
                return found
            if not found.present:
                missing = "no such key" if type(value) in MAPS else "index out of bounds"
                raise EvaluationError(f"{missing}: {key}")
            return found.value

        return get, Maybe if optional or base(static) is Maybe else element(static)

    def _list(self, node: SyntaxNode) -> Typed:
        items = [(self.compile(each), optional) for each, optional in node.parts]
        if any(optional for _, optional in items):

            def collect(frame: Frame) -> Any:
                found: list[Any] = []
                for (code, _), optional in items:
                    value = code(frame)
                    if not optional:
                        found.append(value)
                    elif maybe(value).present:
                        found.append(value.value)
                return found

            return collect, list
        codes = [code for (code, _), _ in items]
        return (lambda frame: [code(frame) for code in codes]), ("list", joined(static for (_, static), _ in items))

    def _map(self, node: SyntaxNode) -> Typed:
        items = [(self.compile(key)[0], self.compile(value), optional) for key, value, optional in node.parts]

        def collect(frame: Frame) -> Any:
            found: dict[Any, Any] = {}
            for key_code, (code, _), optional in items:
                key, value = map_key(key_code(frame)), code(frame)
                if key in found:
                    raise EvaluationError(f"repeated key {key}")
                if not optional:
                    found[key] = value
                elif maybe(value).present:
                    found[key] = value.value
            return found

        return collect, ("map", joined(static for _, (_, static), _ in items))

    def _logic(self, node: SyntaxNode) -> Typed:
        decisive = bool(node.kind == "or")
        operands = [self.compile(each) for each in node.parts]
        if any(static not in (None, BOOL) for _, static in operands):
            raise no_overload("_||_" if decisive else "_&&_", node.position)
        codes = [code for code, _ in operands]

        def decide(frame: Frame) -> bool:
            failure: EvaluationError | None = None
            for code in codes:
                try:
                    value = code(frame)
                except CostError:
                    raise
                except EvaluationError as error:
                    failure = failure or error
                    continue
                if value is decisive:
                    return bool(value)
                if type(value) is not bool:
                    failure = failure or EvaluationError(f"no such overload: {type_name(value)} as a bool")
            if failure is not None:
                raise failure
            return not decisive

        return decide, BOOL

    def _not(self, node: SyntaxNode) -> Typed:
        code, static = self.compile(node.parts[0])
        if static not in (None, BOOL):
            raise no_overload("!_", node.position)

        def negated(frame: Frame) -> bool:
            value = code(frame)
            if type(value) is not bool:
                raise EvaluationError(f"no such overload: !{type_name(value)}")
            return value is False

        return negated, BOOL

    def _negate(self, node: SyntaxNode) -> Typed:
        code, static = self.compile(node.parts[0])
        if static not in (None, int, float):
            raise no_overload("-_", node.position)

        def negative(frame: Frame) -> Any:
            value = code(frame)
            if type(value) is int:
                return checked_int(-value)
            if type(value) is not float:
                raise EvaluationError(f"no such overload: -{type_name(value)}")
            return -value

        return negative, static

    def _choice(self, node: SyntaxNode) -> Typed:
        (condition, test), (first, left), (second, right) = map(self.compile, node.parts)
        if test not in (None, BOOL) or (None not in (left, right) and base(left) is not base(right)):
            raise no_overload("_?_:_", node.position)

        def choose(frame: Frame) -> Any:
            value = condition(frame)
            if type(value) is not bool:
                raise EvaluationError(f"no such overload: {type_name(value)} ? _ : _")
            return first(frame) if value else second(frame)

        return choose, joined((left, right))

    def _operator(self, node: SyntaxNode) -> Typed:
        (first, left), (second, right) = map(self.compile, node.parts)
        static = check_binary(node.kind, left, right, node.position)
        apply = BINARY[node.kind]
        return (lambda frame: apply(frame.charge, first(frame), second(frame))), static

    def _call(self, node: SyntaxNode) -> Typed:
        name, arguments = node.parts
        if name == "has":
            return self._has(node, arguments)
        return self._function(name, FUNCTIONS.get(name), [self.compile(each) for each in arguments], node.position)

    def _has(self, node: SyntaxNode, arguments: Sequence[SyntaxNode]) -> Typed:
        if len(arguments) != 1 or arguments[0].kind != "select":
            raise CompileError(f"at {node.position}: has() needs a field: has(a.b)")
        operand, field, _, _ = arguments[0].parts
        code, static = self.compile(operand)
        field_of(static, field, node.position)

        def test(frame: Frame) -> bool:
            value = code(frame)
            if type(value) is Maybe:
                return value.present and is_set(value.value, field)
            return is_set(value, field)

        return test, BOOL

    def _method(self, node: SyntaxNode) -> Typed:
        operand, name, arguments = node.parts
        if operand.kind == "name" and operand.parts[0] not in self._scope:
            full = f"{operand.parts[0]}.{name}"
            if full == "cel.bind" and len(arguments) == 3:
                return self._bind(arguments)
            if full in FUNCTIONS:
                return self._function(full, FUNCTIONS[full], [self.compile(each) for each in arguments], node.position)
        if (name, len(arguments)) in COMPREHENSIONS:
            return comprehension(self, node)
        code, static = self.compile(operand)
        if name in _REGEX and arguments and arguments[0].kind == "literal":
            _check_regex(arguments[0])
        if name in ("or", "orValue", "optMap", "optFlatMap") and static in (None, Maybe):
            return self._optional(node, code)
        return self._function(
            name, METHODS.get(name), [(code, static), *(self.compile(each) for each in arguments)], node.position
        )

    def _bind(self, arguments: Sequence[SyntaxNode]) -> Typed:
        code, static = self.compile(arguments[1])
        slots, body, result = self.bound([(self.variable(arguments[0]), static)], arguments[2])
        slot = slots[0]

        def bind(frame: Frame) -> Any:
            frame.slots[slot] = code(frame)
            return body(frame)

        return bind, result

    def _optional(self, node: SyntaxNode, code: Code) -> Typed:
        """The methods of optional values, whose arguments are evaluated only if they are needed."""
        _, name, arguments = node.parts
        if name in ("or", "orValue") and len(arguments) == 1:
            other, _ = self.compile(arguments[0])
            if name == "or":
                return (lambda frame: value if maybe(value := code(frame)).present else maybe(other(frame))), Maybe
            return (lambda frame: value.value if maybe(value := code(frame)).present else other(frame)), None
        if name in ("or", "orValue") or len(arguments) != 2:
            raise no_overload(name, node.position)
        slots, body, _ = self.bound([(self.variable(arguments[0]), None)], arguments[1])
        slot, flat = slots[0], name == "optFlatMap"

        def mapped(frame: Frame) -> Any:
            value = maybe(code(frame))
            if not value.present:
                return value
            frame.slots[slot] = value.value
            return maybe(body(frame)) if flat else Maybe(body(frame))

        return mapped, Maybe

    @staticmethod
    def _function(name: str, overloads: Any, arguments: Sequence[Typed], position: int) -> Typed:
        if overloads is None:
            raise CompileError(f"at {position}: undeclared reference to {quoted(name)}")
        if not any(accepts(types, [static for _, static in arguments]) for types, _ in overloads):
            raise no_overload(name, position)
        codes = [code for code, _ in arguments]
        return (lambda frame: call(name, overloads, frame.charge, [code(frame) for code in codes])), result_of(name)


_BY_KIND: Final = {
    "literal": "_literal",
    "name": "_name",
    "select": "_select",
    "index": "_index",
    "call": "_call",
    "method": "_method",
    "list": "_list",
    "map": "_map",
    "and": "_logic",
    "or": "_logic",
    "not": "_not",
    "negate": "_negate",
    "?:": "_choice",
}


_REGEX: Final = frozenset({"matches", "find", "findAll"})


def _check_regex(node: SyntaxNode) -> None:
    """Compiles a literal pattern. Raises CompileError."""
    try:
        regex.compiled(str(node.parts[0]))
    except EvaluationError as error:
        raise CompileError(f"at {node.position}: {error}") from None


# Computed 24 us, kept 0.8 (benchmarks/caches.py).
@text_cache(1024, short=2048, longer=128)
def compiled(text: str, variables: tuple[tuple[str, Static], ...]) -> Program | CompileError:
    """The program of an expression, or why it has none; kept for further uses."""
    try:
        return Program(text, dict(variables))
    except (CompileError, RecursionError) as error:
        return error if isinstance(error, CompileError) else CompileError("the expression is too deeply nested")
