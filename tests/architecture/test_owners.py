"""Sessions, cores, reports and what outlives a session are changed by their own methods alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORK = ROOT / "capcard_sched" / "framework"
#: Class to the module that defines it and the names under which other modules hold an instance.
OWNERS = {
    "Snapshot": ("session/snapshot.py", ()),
    "SessionResults": ("session/results.py", ("results", "_results")),
    "Assumptions": ("session/assumptions.py", ("assumptions", "_assumptions")),
    "Session": ("session/session.py", ("session", "_session")),
    "SessionReport": ("session/report.py", ("report", "_report")),
    "CarryOver": ("session/carry_over.py", ("carry_over", "_carry_over", "memory", "_memory")),
    "Core": ("core.py", ("core", "_core")),
}
HOLDERS = frozenset(name for _, names in OWNERS.values() for name in names)
#: Holders whose fields are containers: a call of one of these methods on a field is a write, too.
OF_CONTAINERS = frozenset((*OWNERS["SessionReport"][1], *OWNERS["CarryOver"][1]))
MUTATORS = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
MUTABLE = ("dict", "list", "set", "deque", "Counter", "defaultdict", "OrderedDict")


def sources() -> Iterator[Path]:
    for folder in ("capcard_sched", "actions", "plugins", "distributions"):
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if not path.is_symlink())


def field_of(node: ast.expr, holders: frozenset[str]) -> str:
    """`report.bound` for an expression that is a field of a held instance, or an item of one; else ""."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Attribute):
        return ""
    held = node.value
    name = held.attr if isinstance(held, ast.Attribute) else held.id if isinstance(held, ast.Name) else ""
    return f"{name}.{node.attr}" if name in holders else ""


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and field of each write to a held instance."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        found = [field_of(target, HOLDERS) for target in targets]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            found.append(field_of(node.func.value, OF_CONTAINERS))
        yield from ((node.lineno, name) for name in found if name)  # type: ignore[attr-defined] # all have a line


def public_containers(owner: ast.ClassDef) -> Iterator[str]:
    """The public attributes of a class that hold, or may hold, a container that others can change."""
    for node in ast.walk(owner):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
                continue
            if target.value.id != "self" or target.attr.startswith("_"):
                continue
            if isinstance(node, ast.AnnAssign):
                mutable = ast.unparse(node.annotation).removeprefix("Final[").partition("[")[0] in MUTABLE
            else:
                value = node.value
                called = ast.unparse(value.func).partition("[")[0] if isinstance(value, ast.Call) else ""
                mutable = called in MUTABLE or isinstance(
                    value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
                )
            if mutable:
                yield target.attr


def test_no_module_writes_to_a_session_a_core_a_report_or_the_carry_over_of_another() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} writes {name}"
        for path in sources()
        for line, name in writes(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize("name", OWNERS)
def test_an_owner_has_no_public_container_that_others_can_change(name: str) -> None:
    tree = ast.parse((FRAMEWORK / OWNERS[name][0]).read_text())
    (owner,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    assert list(public_containers(owner)) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("self._session.report.bound += [uid]", ["report.bound"]),
        ("session.report.timings.append(took)", ["report.timings"]),
        ("session.carry_over.nominations[uid] = made", ["carry_over.nominations"]),
        ("del memory.stuck_in[key]", ["memory.stuck_in"]),
        ("self._core.registry = other", ["_core.registry"]),
        ("session.nominating, rest = True, 1", ["session.nominating"]),
        ("self.report.add_placement(record)", []),
        ("session.failed_attempts.add(failure)", []),
        ("self.report = SessionReport(uid)", []),
    ],
)
def test_the_guard_finds_writes(code: str, found: list[str]) -> None:
    assert [name for _, name in writes(ast.parse(code))] == found


def test_the_guard_finds_public_containers() -> None:
    code = "class A:\n def f(self):\n  self.a: dict[str, int] = {}\n  self.b = set()\n  self.e: Final[list[int]] = []"
    (owner,) = ast.parse(code).body
    assert isinstance(owner, ast.ClassDef)
    assert list(public_containers(owner)) == ["a", "b", "e"]
