from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.web.served import ARGUMENTS, Served, serving


@pytest.fixture(scope="session")
def example() -> Iterator[Callable[[str], Served]]:
    """The server of an example, started once."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(serving(*ARGUMENTS[name])))
