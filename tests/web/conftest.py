from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from capcard_sched.cli.main import run
from tests.web.served import ARGUMENTS, Served, serving


@pytest.fixture(scope="session")
def example() -> Iterator[Callable[[str], Served]]:
    """The server of an example, started once."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(serving(*ARGUMENTS[name])))


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The ledger of the tidal example."""
    file = str(tmp_path_factory.mktemp("ledger") / "day.db")
    assert run(["simulate", *ARGUMENTS["tidal"], "--ledger", file]) == 0
    return file
