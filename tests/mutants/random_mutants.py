"""Random changes of the core by the operators of mutmut: the population, its filter and a seeded sample."""

# The group `mutation` of pyproject.toml is installed by `make mutation` only.
# mypy: disable-error-code="import-not-found,import-untyped,unused-ignore"

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

from tests.mutants.mutant import PACKAGES, ROOT

#: Calls of which no argument is changed: they have no effect at run time.
_TYPING_CALLS: Final = frozenset({"cast", "TypeVar", "TypeAlias", "field"})
#: Keyword arguments that check or type what is given: `zip(strict=)`, `np.zeros(dtype=)`.
_SKIPPED_ARGUMENTS: Final = frozenset({"strict", "dtype"})
_SKIPPED_FUNCTIONS: Final = frozenset({"__repr__"})
_SKIPPED_TARGETS: Final = frozenset({"__slots__", "__hash__"})


class RandomMutant(NamedTuple):
    """A change of one expression or statement."""

    #: Path from the root of the repository.
    file: str
    #: First and last line of the changed statement, from 1.
    line: int
    end: int
    #: Whether the statement runs when the module is imported.
    at_import: bool
    #: The module as parsed, and the change.
    module: cst.Module
    mutation: Mutation

    @property
    def package(self) -> str:
        """The folder of `PACKAGES` that contains the file."""
        return next(package for package in PACKAGES if self.file.startswith(f"{package}/"))

    @property
    def code(self) -> str:
        """The text of the changed file."""
        changed = self.module.deep_replace(self.mutation.original_node, self.mutation.mutated_node)  # type: ignore[arg-type]
        assert isinstance(changed, cst.Module)
        code: str = changed.code
        return code


def population() -> list[RandomMutant]:
    """Every mutant that passes the filter, in the order of files and positions."""
    return [
        mutant
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for mutant in _of_file(path.relative_to(ROOT).as_posix(), path.read_text())
    ]


def sample(everything: list[RandomMutant], number: int, seed: int) -> list[RandomMutant]:
    """`number` mutants without replacement, in random order."""
    return random.Random(seed).sample(everything, min(number, len(everything)))


def first_difference(before: str, after: str) -> tuple[int, str, str]:
    """The first line that differs: its number, and the line in both texts without indentation."""
    for number, (old, new) in enumerate(zip(before.split("\n"), after.split("\n"), strict=False), start=1):
        if old != new:
            return number, old.strip(), new.strip()
    return 0, "", ""


def _of_file(file: str, code: str) -> Iterator[RandomMutant]:
    module = cst.parse_module(code)
    found = MetadataWrapper(module, unsafe_skip_copy=True)
    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    found.visit(visitor)
    positions, parents = found.resolve(PositionProvider), found.resolve(ParentNodeProvider)
    for mutation in visitor.mutations:
        ancestors = list(_ancestors(mutation.original_node, parents))
        if _is_excluded(mutation, ancestors):
            continue
        statement = next((node for node in ancestors if isinstance(node, cst.BaseSmallStatement)), None)
        span = positions[statement if statement is not None else mutation.original_node]
        # The default of a parameter is evaluated where its function is defined.
        at_import = not any(
            isinstance(node, cst.FunctionDef | cst.Lambda) and not isinstance(child, cst.Parameters)
            for child, node in pairwise(ancestors)
        )
        yield RandomMutant(file, span.start.line, span.end.line, at_import, module, mutation)


def _ancestors(node: cst.CSTNode, parents: object) -> Iterator[cst.CSTNode]:
    """The node and the nodes around it, inside out."""
    current: cst.CSTNode | None = node
    while current is not None:
        yield current
        current = parents.get(current)  # type: ignore[attr-defined]


def _is_excluded(mutation: Mutation, ancestors: list[cst.CSTNode]) -> bool:
    """Changes without effect on decisions; docs/mutation.md lists the rules."""
    original, mutated = mutation.original_node, mutation.mutated_node
    if isinstance(original, cst.SimpleString) and " " in original.value:
        return True  # a text, not a key
    for child, node in zip([None, *ancestors], ancestors, strict=False):
        match node:
            case cst.Assert() | cst.Raise() | cst.Decorator() | cst.Annotation():
                return True
            case cst.If(test=cst.Name(value="TYPE_CHECKING")):
                return True
            case cst.FunctionDef(name=cst.Name(value=name)) if name in _SKIPPED_FUNCTIONS:
                return True
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]) if name in _SKIPPED_TARGETS:
                return True
            case cst.AnnAssign(annotation=cst.Annotation(annotation=cst.Name(value="TypeAlias"))):
                return True
            case cst.Call(func=cst.Name(value=name)) if name in _TYPING_CALLS:
                return True
            case cst.Arg(keyword=cst.Name(value=name)) if name in _SKIPPED_ARGUMENTS and child is not None:
                return True
            case _:
                continue
    if isinstance(original, cst.Call) and isinstance(mutated, cst.Call):
        return _kept(original) == _kept(mutated)
    return False


def _kept(call: cst.Call) -> list[tuple[str, cst.BaseExpression]]:
    """The arguments of a call without those that have no effect on decisions."""
    named = [(arg.keyword.value if arg.keyword is not None else "", arg.value) for arg in call.args]
    return [(name, value) for name, value in named if name not in _SKIPPED_ARGUMENTS]
