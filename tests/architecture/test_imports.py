"""The import table of docs/architecture.md, as executable contracts."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Nodes of the syntax tree.
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

#: Distribution to import name, where they differ.
IMPORT_NAMES = {"prometheus-client": "prometheus_client", "psycopg[binary]": "psycopg", "pyyaml": "yaml"}
#: Read by the standard library: time zones, where the system has none.
DATA_ONLY = {"tzdata"}
#: Third-party packages a package may import; numpy and msgspec are the core's own tools.
THIRD_PARTY = {
    package: set(names.split())
    for package, names in {
        "model": "msgspec numpy yaml",
        "cel": "",
        "devices": "msgspec",
        "state": "msgspec numpy",
        "validation": "msgspec",
        "framework": "msgspec numpy",
        "actions": "msgspec numpy",
        "admission": "msgspec",
        "plugins": "msgspec numpy",
        "kube": "aiohappyeyeballs httptools kubernetes msgspec yarl",
        "simulation": "msgspec yaml",
        "reports": "msgspec rich",
        "cli": "cyclopts msgspec rich uvloop yaml",
        "config": "",
        "insight": "msgspec numpy",
        "web": "aiohttp jinja2 kopf markupsafe msgspec",
        "daemon": "aiohttp cryptography cyclopts msgspec numpy prometheus_client structlog uvloop watchfiles yaml",
        "testing": "msgspec numpy",
        "gc": "",
        "input_files": "",
        "controllers": "cronsim msgspec",
        "ledger": "alembic msgspec psycopg sqlalchemy",
    }.items()
}
#: Import name of each optional distribution to its folder.
DISTRIBUTIONS = {f"capcard_sched_{folder.name}": folder for folder in sorted((ROOT / "distributions").iterdir())}


def modules(package: str) -> list[Path]:
    """The modules of a package or module of capcard_sched, or of a distribution."""
    if package in DISTRIBUTIONS:
        return sorted(DISTRIBUTIONS[package].rglob("*.py"))
    base = ROOT / "capcard_sched" / package
    return sorted(base.resolve().rglob("*.py")) if base.is_dir() else [base.with_suffix(".py")]


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"capcard_sched"}


def packages() -> set[str]:
    package = ROOT / "capcard_sched"
    folders = {path.name for path in package.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    files = {path.stem for path in package.glob("*.py") if path.stem != "__init__"}
    return folders | files


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_has_a_row_in_the_table() -> None:
    assert packages() == set(THIRD_PARTY)


@pytest.mark.parametrize("package", sorted(THIRD_PARTY))
def test_a_package_imports_no_package_that_is_not_in_its_row(package: str) -> None:
    for path in modules(package):
        assert imported(path) <= THIRD_PARTY[package], path


def test_every_dependency_is_used_and_every_used_package_is_a_dependency() -> None:
    declared = {
        requirement.partition(">")[0].partition("=")[0].strip() for requirement in PYPROJECT["project"]["dependencies"]
    }
    used = set().union(*(imported(path) for package in packages() for path in modules(package)))
    assert {IMPORT_NAMES.get(name, name) for name in declared - DATA_ONLY} == used


@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_an_optional_distribution_depends_on_what_it_imports(package: str) -> None:
    project = tomllib.loads((DISTRIBUTIONS[package] / "pyproject.toml").read_text())["project"]
    declared = {re.split("[=>]", requirement)[0] for requirement in project["dependencies"]} - {"capcard-sched"}
    used = set().union(*map(imported, modules(package))) - {package}
    assert {IMPORT_NAMES.get(name, name) for name in declared} == used


def test_the_folders_of_the_repository_are_imported_under_one_name_only() -> None:
    for path in [*ROOT.glob("tests/**/*.py"), *(file for package in packages() for file in modules(package))]:
        assert not imported(path) & {"plugins", "actions", "config"}, path


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "misc", "manager", "util", "helper"])
def test_no_module_has_a_meaningless_name(name: str) -> None:
    found = [path for package in (*packages(), *DISTRIBUTIONS) for path in modules(package)]
    assert [path for path in found if name in (path.stem, path.parent.name)] == []


def test_no_class_has_more_than_40_methods_and_no_function_more_than_60_lines() -> None:
    """Lines of code: without docstring, comments and blank lines. Constructors, which name one field a line: 80."""
    found: dict[str, int] = {}
    for package in (*packages(), *DISTRIBUTIONS):
        for path in modules(package):
            lines, tree = path.read_text().split("\n"), ast.parse(path.read_text())
            for node in ast.walk(tree):
                place = f"{path.relative_to(ROOT)}: {getattr(node, 'name', '')}"
                if isinstance(node, ast.ClassDef):
                    methods = sum(isinstance(each, FUNCTIONS) for each in node.body)
                    if methods > 40:
                        found[place] = methods
                elif isinstance(node, FUNCTIONS):
                    body = node.body[1:] if ast.get_docstring(node) else node.body
                    texts = [line.strip() for line in lines[body[0].lineno - 1 : node.end_lineno]] if body else []
                    code = sum(bool(text) and not text.startswith("#") for text in texts)
                    if code > (80 if node.name == "__init__" else 60):
                        found[place] = code
    assert found == {}


def test_no_class_makes_more_than_7_public_parts() -> None:
    """Attributes without `_` to which a constructor assigns an object of another class."""
    found = {}
    for package in (*packages(), *DISTRIBUTIONS):
        for path in modules(package):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bodies = [each for each in node.body if isinstance(each, FUNCTIONS) and each.name == "__init__"]
                    parts = {part for body in bodies for part in _public_parts(body)}
                    if len(parts) > 7:
                        found[f"{path.relative_to(ROOT)}: {node.name}"] = sorted(parts)
    assert found == {}


def _public_parts(constructor: ast.AST) -> Iterator[str]:
    for each in ast.walk(constructor):
        match each:
            case (
                ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=ast.Call(ast.Name(made)))
                | ast.AnnAssign(target=ast.Attribute(value=ast.Name("self"), attr=name), value=ast.Call(ast.Name(made)))
            ) if made[:1].isupper() and not name.startswith("_"):
                yield name


def test_every_class_name_is_unique() -> None:
    places: dict[str, list[str]] = {}
    for package in (*sorted(packages()), *DISTRIBUTIONS):
        for path in modules(package):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
