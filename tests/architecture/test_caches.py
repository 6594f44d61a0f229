"""Functions of texts of users are cached by `text_cache`: an `lru_cache` of 4,096 texts of 1 MB each is 4 GB."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
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


def _cached(path: Path) -> Iterator[ast.FunctionDef]:
    """Functions with an `lru_cache` or `cache`."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in functions.values():
        if any(ast.unparse(each).split("(")[0] in ("lru_cache", "cache") for each in node.decorator_list):
            yield node
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("lru_cache("):
            yield from (functions[each.id] for each in call.args if isinstance(each, ast.Name) and each.id in functions)


def _has_texts(function: ast.FunctionDef) -> bool:
    arguments = (*function.args.args, *function.args.kwonlyargs)
    words = (word for each in arguments if each.annotation for word in ast.walk(each.annotation))
    return any(isinstance(word, ast.Name) and word.id in _TEXTS for word in words)


def test_functions_of_texts_have_a_cache_that_is_bounded_in_bytes() -> None:
    found = set()
    for folder in ("capcard_sched", "plugins", "actions", "distributions"):
        for path in sorted(each for each in (_ROOT / folder).rglob("*.py") if not each.is_symlink()):
            name = path.relative_to(_ROOT).as_posix()
            found |= {f"{name} {each.name}" for each in _cached(path) if _has_texts(each)}
    assert found == set(_BOUNDED)
