"""Connections to PostgreSQL that end when the server is silent: psycopg alone waits without end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Generator

#: Seconds in which a connection must be established.
_CONNECT: Final = 10
#: Seconds without any byte of the server after which a statement fails: another recorder may hold a lock for a while.
_SILENCE: Final = 60.0


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed once the server is silent for too long."""

    def wait(self, gen: Generator[Any, int, Any], *args: Any, **options: Any) -> Any:
        return super().wait(self._while_responding(gen), *args, **options)

    def _while_responding(self, gen: Generator[Any, int, Any]) -> Generator[Any, int, Any]:
        """The same steps. psycopg sends 0 to them ten times a second while the socket is not ready."""
        last = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    last = time.monotonic()
                elif time.monotonic() - last > _SILENCE:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has not responded for {_SILENCE:g} seconds")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


def connect(_dialect: Any, _record: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> BoundedConnection:
    """As SQLAlchemy's event `do_connect`. The URL may have another `connect_timeout`."""
    return BoundedConnection.connect(*arguments, **{"connect_timeout": _CONNECT, **options})
