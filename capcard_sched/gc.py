"""Settings of the process the scheduler runs in."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import Final, NoReturn

#: Objects: the collector runs once this many more were made than freed. A session makes a few for every pod it
#: places and nearly all of them stay: with the interpreter's own threshold a tenth of its time went into looking.
#: What is made again and again must therefore be in no reference cycle (docs/decisions/0058).
_YOUNG_OBJECTS = 50_000
_OLDER_GENERATIONS = (50, 100)
#: A parameter of glibc's mallopt.
_M_ARENA_MAX: Final = -8
#: What `keep` holds.
_KEPT: Final[list[object]] = []


def pause() -> None:
    """Before the imports of a service: nearly all objects they make stay, 70,000 that two collections would visit."""
    gc.disable()


def collect_seldom() -> None:
    """After the imports of a service: the collector skips their objects, and runs seldom for later ones."""
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *_OLDER_GENERATIONS)
    gc.enable()


def use_one_arena() -> None:
    """Before threads start: glibc gives each thread an arena, whose free memory no other thread uses.

    Python's threads take turns anyway. Without effect with another C library.
    """
    import ctypes  # not before: NumPy imports it, too

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """After the first lists: glibc keeps what their pages and decoding freed, 4 MiB of 5,000 pods, until a trim."""
    import ctypes

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def settle_memory() -> None:
    """After the first lists were taken in: the collector skips what exists now, and runs seldom for what comes.

    May be called again, when much was replaced: what died since is then freed first.
    """
    gc.unfreeze()
    gc.collect()
    collect_seldom()


def keep_all() -> None:
    """For a process that reads a cluster, prints a result and ends: nearly all it makes stays to the end.

    At 50,000 pods, collections were a third of its time. `end_at_once` ends it.
    """
    gc.disable()


def keep(found: object) -> None:
    """Under `keep_all`, hold an object until the process ends: the function that made it would free it part by part.

    At 50,000 pods that takes as long as the diagnosis of a job.
    """
    if not gc.isenabled():
        _KEPT.append(found)


def end_at_once(status: int) -> NoReturn:
    """End the process after its exit handlers, without freeing its objects one by one."""
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()  # files with credentials of a kubeconfig are removed
    os._exit(status)
