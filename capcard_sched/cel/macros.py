"""The macros of CEL that loop over lists and maps. Each iteration charges the nodes of its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.cel.static_types import BOOL, base, element, no_overload
from capcard_sched.cel.values import MAPS, CostError, EvaluationError, from_map_key, map_key, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capcard_sched.cel.frame import Code, Frame, MacroScope, Typed
    from capcard_sched.cel.syntax import SyntaxNode

#: Name and number of arguments to the number of variables.
COMPREHENSIONS: Final = {
    ("all", 2): 1,
    ("exists", 2): 1,
    ("exists_one", 2): 1,
    ("existsOne", 2): 1,
    ("filter", 2): 1,
    ("map", 2): 1,
    ("map", 3): 1,
    ("all", 3): 2,
    ("exists", 3): 2,
    ("exists_one", 3): 2,
    ("existsOne", 3): 2,
    ("transformList", 3): 2,
    ("transformList", 4): 2,
    ("transformMap", 3): 2,
    ("transformMap", 4): 2,
    ("transformMapEntry", 3): 2,
    ("transformMapEntry", 4): 2,
}


def comprehension(compiler: MacroScope, node: SyntaxNode) -> Typed:
    """The code of a macro. Raises CompileError."""
    operand, name, arguments = node.parts
    code, static = compiler.compile(operand)
    if base(static) not in (None, list, dict):
        raise no_overload(name, node.position)
    variables = COMPREHENSIONS[name, len(arguments)]
    names = [compiler.variable(each) for each in arguments[:variables]]
    inner = element(static)
    key = str if base(static) is dict else int if base(static) is list else None
    known = [key, inner] if variables == 2 else [inner if base(static) is list else key]
    before = compiler.nodes
    bodies = [compiler.bound(list(zip(names, known, strict=True)), each) for each in arguments[variables:]]
    cost = 1 + compiler.nodes - before
    if (name in _PREDICATES or len(bodies) == 2) and bodies[0][2] not in (None, BOOL):
        raise no_overload(name, node.position)
    slots = bodies[0][0]

    def items(frame: Frame) -> Iterator[Any]:
        """Binds the variables to one element after the other, and yields it."""
        for item in _elements(code(frame), variables):
            frame.charge(cost)
            if variables == 1:
                frame.slots[slots[0]] = item
            else:
                frame.slots[slots[0]], frame.slots[slots[1]] = item
            yield item

    codes = [body for _, body, _ in bodies]
    if name in ("all", "exists"):
        return _quantifier(items, codes[0], decisive=name == "exists"), BOOL
    if name in ("exists_one", "existsOne"):
        return (lambda frame: sum(_truth(codes[0](frame)) for _ in items(frame)) == 1), BOOL
    test, value = (codes[0], codes[1]) if len(codes) == 2 else (None, codes[0])
    if name == "filter":
        return (lambda frame: [item for item in items(frame) if _truth(value(frame))]), static if key is int else list
    if name in ("map", "transformList"):
        return (lambda frame: [value(frame) for _ in items(frame) if test is None or _truth(test(frame))]), (
            "list",
            bodies[-1][2],
        )
    return _transform(items, test, value, entries=name == "transformMapEntry"), dict


_PREDICATES: Final = frozenset({"all", "exists", "exists_one", "existsOne", "filter"})


def _elements(value: Any, variables: int) -> Any:
    if type(value) is list:
        return enumerate(value) if variables == 2 else value
    if type(value) in MAPS:
        if variables == 2:
            return [(from_map_key(key), each) for key, each in value.items()]
        return [from_map_key(key) for key in value]
    raise EvaluationError(f"no such overload: a loop over {type_name(value)}")


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise EvaluationError(f"no such overload: {type_name(value)} as a bool")
    return value


def _quantifier(items: Callable[[Frame], Iterator[Any]], body: Code, *, decisive: bool) -> Code:
    def run(frame: Frame) -> bool:
        failure: EvaluationError | None = None
        for _ in items(frame):
            try:
                if _truth(body(frame)) is decisive:
                    return decisive
            except CostError:
                raise
            except EvaluationError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not decisive

    return run


def _transform(items: Callable[[Frame], Iterator[Any]], test: Code | None, value: Code, *, entries: bool) -> Code:
    def run(frame: Frame) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, _ in items(frame):
            if test is not None and not _truth(test(frame)):
                continue
            made = value(frame)
            if not entries:
                found[map_key(key)] = made
                continue
            if type(made) not in MAPS:
                raise EvaluationError(f"no such overload: {type_name(made)} as an entry")
            for each, inner in made.items():
                if each in found:
                    raise EvaluationError(f"repeated key {from_map_key(each)}")
                found[each] = inner
        return found

    return run
