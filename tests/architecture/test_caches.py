"""Functions of texts of users are cached by `text_cache`: an `lru_cache` of 4,096 texts of 1 MB each is 4 GB.

Every cache of a function of arguments is measured in `benchmarks/caches.py`, or stated here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.caches import CASES

_ROOT: Final = Path(__file__).parents[2]
_LRU_CACHES: Final = ("lru_cache", "cache", "functools.cache")
_TEXTS: Final = ("str", "bytes", "RawQuantity")
#: Functions of texts with an `lru_cache`, and why these texts are few or short.
_BOUNDED: Final = {
    "capcard_sched/controllers/owner_paths.py _steps": "paths of rules of the administrator",
    "capcard_sched/model/card_registration.py _uuids": "annotations of nodes",
    "capcard_sched/model/cards.py _discover": "labels of nodes",
    "capcard_sched/model/quantity.py _base": "the caller checks the lengths",
    "capcard_sched/model/quantity.py _scaled": "the caller checks the length",
    "capcard_sched/framework/session/ordering.py ranks_for": "names of queues, within a session",
    "capcard_sched/framework/session/ordering.py version": "names of queues, within a session",
    "capcard_sched/model/numa.py _read": "objects of nodes",
    "capcard_sched/model/yaml_reader.py _plain_tag": "files of the own user",
    "capcard_sched/state/decode.py _valid_amounts": "resources of nodes, a limited number",
}


#: Functions with a cache that saves more than time, or that a scene of the benchmarks measures.
_UNMEASURED: Final = {
    "_field_names": "a file",
    "_kind_of_type": "a constant of each type",
    "_owners": "a constant",
    "_read_pipe": "a pipe is read once",
    "built_in_rules": "a file",
    "registry": "a constant, for tests",
    "known_keys": "a constant",
    "ranks_for": "B5 of `benchmarks.bench`",
    "version": "B5 of `benchmarks.bench`",
}


def _cached(path: Path, *names: str) -> Iterator[ast.FunctionDef]:
    """Functions with a cache of one of these names."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in functions.values():
        if any(ast.unparse(each).split("(")[0] in names for each in node.decorator_list):
            yield node
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("lru_cache("):
            yield from (functions[each.id] for each in call.args if isinstance(each, ast.Name) and each.id in functions)


def _has_texts(function: ast.FunctionDef) -> bool:
    arguments = (*function.args.args, *function.args.kwonlyargs)
    words = (word for each in arguments if each.annotation for word in ast.walk(each.annotation))
    return any(isinstance(word, ast.Name) and word.id in _TEXTS for word in words)


def _modules() -> Iterator[tuple[str, Path]]:
    for folder in ("capcard_sched", "plugins", "actions", "distributions"):
        for path in sorted(each for each in (_ROOT / folder).rglob("*.py") if not each.is_symlink()):
            yield path.relative_to(_ROOT).as_posix(), path


def test_functions_of_texts_have_a_cache_that_is_bounded_in_bytes() -> None:
    found = {
        f"{name} {each.name}" for name, path in _modules() for each in _cached(path, *_LRU_CACHES) if _has_texts(each)
    }
    assert found == set(_BOUNDED)


def test_every_cache_is_measured() -> None:
    measured = {function.__wrapped__.__name__ for function, _ in CASES}  # type: ignore[attr-defined]
    found = {each.name for _, path in _modules() for each in _cached(path, *_LRU_CACHES, "text_cache")}
    assert found == measured | set(_UNMEASURED)
