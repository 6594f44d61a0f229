"""The database of the ledger: opening and migration, writes in one transaction each, and reads.

SQLite in WAL mode, or PostgreSQL. A write has changed rows and the moment up to which their source is recorded; both
are committed together, so that a killed process neither loses nor doubles a row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from capcard_sched.ledger import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.engine import Row as DatabaseRow
    from sqlalchemy.sql import Executable

    from capcard_sched.ledger.rows import Row

_POSTGRESQL: Final = ("postgresql://", "postgres://")
#: A database that lives as long as its connection.
IN_MEMORY: Final = "sqlite://"
#: Milliseconds for which a writer of SQLite waits for another one.
_BUSY: Final = 30_000
#: Key of the advisory lock under which PostgreSQL is migrated.
_LOCK: Final = 0x6361_7063
#: Rows per statement.
_CHUNK: Final = 500


class LedgerError(Exception):
    """A database that cannot be opened, read or written; the text names it."""


def database_name(url: str) -> str:
    """The database in messages: without a password."""
    if not url.startswith(_POSTGRESQL):
        return url
    scheme, _, rest = url.partition("://")
    credentials, at, server = rest.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{server}"


class LedgerDatabase:
    """One open database. Methods raise LedgerError."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """`url`: a file, or `postgresql://...`. `create`: create or migrate the tables; else they must be current."""
        self.name = database_name(url)
        self._engine = _engine_of(url, create=create)
        try:
            with self._engine.connect() as connection:
                _migrate(connection, self.name, create=create)
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise LedgerError(f"{self.name}: {_reason(error)}") from None
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @property
    def engine(self) -> Engine:
        """For tests and statements of their own."""
        return self._engine

    def read(self, statement: Executable) -> Sequence[DatabaseRow[Any]]:
        """The rows of a statement."""
        return self.read_all([statement])[0]

    def read_all(self, statements: Iterable[Executable]) -> list[Sequence[DatabaseRow[Any]]]:
        """The rows of several statements, of one state of the database."""
        try:
            with self._engine.connect() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execution_options(isolation_level="REPEATABLE READ")
                else:
                    connection.execute(text("BEGIN"))
                return [connection.execute(statement).all() for statement in statements]
        except SQLAlchemyError as error:
            raise LedgerError(f"{self.name}: {_reason(error)}") from None

    def write(self, rows: Iterable[Row], source: str, until: int) -> None:
        """Insert or update rows, and record `source` up to the moment `until`, in one transaction."""
        tables: dict[Table, list[dict[str, Any]]] = {}
        for row in rows:
            tables.setdefault(schema.TABLES[type(row)], []).append(msgspec.structs.asdict(row))
        try:
            with self._engine.begin() as connection:
                for table, values in tables.items():
                    for first in range(0, len(values), _CHUNK):
                        put_rows(connection, table, values[first : first + _CHUNK])
                known = schema.SOURCE
                connection.execute(known.update().where(known.c.id == source).values(recorded_until=until))
        except SQLAlchemyError as error:
            raise LedgerError(f"{self.name}: {_reason(error)}") from None

    def sources(self) -> Sequence[DatabaseRow[Any]]:
        """The recorded sources, in order of time."""
        return self.read(select(schema.SOURCE).order_by(schema.SOURCE.c.began))

    def add_source(self, id: str, kind: str, began: int) -> None:
        """Add a source of which nothing is recorded yet."""
        value = {"id": id, "kind": kind, "began": began, "recorded_until": began - 1}
        try:
            with self._engine.begin() as connection:
                connection.execute(schema.SOURCE.insert(), [value])
        except SQLAlchemyError as error:
            raise LedgerError(f"{self.name}: {_reason(error)}") from None


def put_rows(connection: Connection, table: Table, values: list[dict[str, Any]]) -> None:
    """Insert rows, or replace those of the same keys. One row per key."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    keys = [column.name for column in table.primary_key]
    changed = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), values)


def _engine_of(url: str, *, create: bool) -> Engine:
    if url == IN_MEMORY:
        return create_engine(IN_MEMORY, poolclass=StaticPool, connect_args={"check_same_thread": False})
    if url.startswith(_POSTGRESQL):
        import psycopg

        try:
            return create_engine(f"postgresql+psycopg://{url.partition('://')[2]}", module=psycopg, pool_pre_ping=True)
        except (ArgumentError, ValueError):
            raise LedgerError(f"{database_name(url)}: not a database URL: postgresql://USER@HOST:PORT/NAME") from None
    if "://" in url:
        raise LedgerError(f"{url}: not supported; accepted: a file, or postgresql://USER@HOST:PORT/NAME")
    file = Path(url)
    try:
        # Names of users and jobs: a new file is readable by its owner only, and so are the files beside it.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o600))
    except OSError as error:
        raise LedgerError(f"{url}: {error.strerror or error}") from None
    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "connect", _prepare)
    return engine


def _prepare(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _migrate(connection: Connection, name: str, *, create: bool) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    wanted, known = scripts.get_current_head(), {script.revision for script in scripts.walk_revisions()}
    if create:
        # One process migrates; others wait.
        is_server = connection.dialect.name == "postgresql"
        connection.execute(text(f"SELECT pg_advisory_lock({_LOCK})" if is_server else "BEGIN EXCLUSIVE"))
    present = MigrationContext.configure(connection).get_current_revision()
    if present == wanted:
        connection.rollback() if connection.dialect.name == "sqlite" else connection.commit()
    elif present is not None and present not in known:
        raise LedgerError(f"{name}: written by a newer version of this program (tables {present}; accepted: {wanted})")
    elif not create:
        state = f"tables {present}, expected {wanted}" if present else "not a ledger"
        raise LedgerError(f"{name}: {state}")
    else:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
    if create and connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_unlock({_LOCK})"))
        connection.commit()


def _reason(error: SQLAlchemyError) -> str:
    """The text of the driver, in one line."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    kind = "cannot connect: " if isinstance(error, OperationalError) and "connection" in str(cause) else ""
    return kind + (lines[0] if lines else type(cause).__name__)
