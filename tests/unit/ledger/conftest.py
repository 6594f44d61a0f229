"""The databases of the ledger's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.unit.ledger import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """The folder of a server's socket. Without PostgreSQL tests are skipped, in CI they fail."""
    try:
        with postgres.server() as folder:
            yield folder
    except postgres.NoPostgresError as error:
        if os.environ.get("CAPCARD_REQUIRE_PACKAGES"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes new databases of both kinds; returns their URLs."""
    if request.param == "postgresql":
        folder = request.getfixturevalue("postgres_server")
        return lambda: postgres.new_database(folder)
    number = count()
    return lambda: str(tmp_path / f"{next(number)}.db")
