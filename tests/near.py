"""Selects the tests near the changed files; `make near` runs them.

Changed are the files that differ from the commit in BASE (default: HEAD), and those that are not under version control.
Near a file of the product are the test modules that import it, and the tests of the folder that mirrors its own, or the
nearest one above it. Near a file of `tests` are the test modules that import it, or else those of its folder. Near a
page are the tests of pages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
#: Roots of the product: path prefix to module prefix and to the prefixes of the mirroring test folders.
_ROOTS: Final = {
    "plugins/": ("capcard_sched.plugins.", ("tests/unit/plugins/", "tests/vectors/")),
    "actions/": ("capcard_sched.actions.", ("tests/unit/actions/", "tests/vectors/")),
    "capcard_sched/": ("capcard_sched.", ("tests/unit/", "tests/")),
    "distributions/extender/capcard_sched_extender/": ("capcard_sched_extender.", ("tests/unit/extender/",)),
    "distributions/trace/capcard_sched_trace/": ("capcard_sched_trace.", ("tests/unit/trace/",)),
}
_IMPORT: Final = re.compile(r"^\s*(?:from (\S+) import (\([^)]*\)|.*)|import (\S+))", re.MULTILINE)
_PAGES: Final = ("tests/architecture/test_docs.py", "tests/docs")


def imported_modules(source: str) -> set[str]:
    """Dotted names that a module imports; `from a import b` counts as `a` and `a.b`."""
    names: set[str] = set()
    for package, members, module in _IMPORT.findall(source):
        names.add(package or module)
        names.update(f"{package}.{member}" for member in re.findall(r"\b(\w+)(?: as \w+)?", members) if package)
    return names


def select(changed: list[str], imports: dict[str, set[str]]) -> list[str]:
    """Returns the paths of the tests near changed paths.

    Args:
        changed: Paths from the root of the repository, with `/`.
        imports: Modules that each test module imports, by its path; `tests/**/test_*.py`.
    """
    near: set[str] = set()
    for path in changed:
        if path.startswith("tests/"):
            importers = _importers(path.removesuffix(".py").replace("/", "."), imports) - {path}
            folder = path.rsplit("/", 1)[0] + "/"
            near |= {path} & imports.keys() or importers or {test for test in imports if test.startswith(folder)}
        elif path.endswith(".py"):
            near |= _near_product(path, imports)
        elif path.startswith("docs/") or path in {"README.md", "CONTRIBUTING.md"}:
            near.update(_PAGES)
        elif path.startswith("manifests/"):
            near.update(test for test in imports if test.startswith("tests/manifests/"))
    return sorted(near)


def _near_product(path: str, imports: dict[str, set[str]]) -> set[str]:
    for root, (package, mirrors) in _ROOTS.items():
        if path.startswith(root):
            inner = path.removeprefix(root).removesuffix("/__init__.py").removesuffix(".py")
            near = _importers(package + inner.replace("/", "."), imports)
            for mirror in mirrors:
                # plugins/gang.py: tests/unit/plugins/test_gang.py; framework/quota/x.py: tests/unit/framework/quota/
                exact = f"{mirror}{'/'.join([*inner.split('/')[:-1], 'test_' + inner.split('/')[-1]])}.py"
                near |= {exact} & imports.keys()
            near |= _mirrored(inner, mirrors, imports)
            if "tests/vectors/" in mirrors:
                near.add("tests/vectors")
            return near
    return set()


def _mirrored(inner: str, mirrors: tuple[str, ...], imports: dict[str, set[str]]) -> set[str]:
    """The tests of the folders that mirror that of a module, or the nearest folder above it that is mirrored."""
    folder = inner.rpartition("/")[0] or inner
    while folder:
        if found := {test for test in imports for mirror in mirrors if test.startswith(f"{mirror}{folder}/")}:
            return found
        folder = folder.rpartition("/")[0]
    return set()


def _importers(module: str, imports: dict[str, set[str]]) -> set[str]:
    return {test for test, modules in imports.items() if module in modules}


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line]


def main(base: str) -> int:
    """Prints the selected paths, one per line."""
    changed = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    tests = _git("ls-files", "--cached", "--others", "--exclude-standard", "tests/**/test_*.py", "tests/test_*.py")
    imports = {test: imported_modules((ROOT / test).read_text()) for test in tests if (ROOT / test).exists()}
    sys.stdout.writelines(f"{path}\n" for path in select(changed, imports))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or ["HEAD"]))
