"""Changes functions of imported modules in place: a mutant needs no import and no collection of tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType


class LivePatch:
    """The functions of the imported modules below a folder, by file and qualified name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._functions: dict[tuple[Path, str], list[FunctionType]] = {}
        paths: dict[str, Path] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                code = found.__code__
                path = paths.get(code.co_filename)
                if path is None:  # packages enter the product through symbolic links
                    path = paths[code.co_filename] = Path(code.co_filename).resolve()
                self._functions.setdefault((path, code.co_qualname), []).append(found)

    def apply(self, file: str, before: str, after: str) -> bool:
        """Change the functions that differ between two texts of a file. False when one cannot be changed in place."""
        path = self._folder / file
        old, new = (dict(_functions(compile(text, str(path), "exec"))) for text in (before, after))
        if old.keys() != new.keys():
            return False
        changed = [key for key in old if old[key] != new[key]]
        for name, number in changed:
            code = new[name, number]
            live = [
                each
                for each in self._functions.get((path, name), ())
                if each.__code__.co_firstlineno == number and each.__code__.co_freevars == code.co_freevars
            ]
            if not live:
                return False
            for each in live:
                each.__code__ = code
        return bool(changed)


def _functions(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The functions of a module and its classes with their first lines; inner functions belong to the outer one."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if "<locals>" not in constant.co_qualname and constant.co_flags & 0x2:  # CO_NEWLOCALS: no class body
                yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _functions(constant) if not constant.co_flags & 0x1 else ()
