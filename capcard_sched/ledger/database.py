"""The database of the ledger: opening and migration, writes in one transaction each, and reads.

SQLite in WAL mode, or PostgreSQL. A write has changed rows and the moment up to which their source is recorded; both
are committed together, so that a killed process neither loses nor doubles a row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine, Select, Table
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


#: Milliseconds after its last record for which a recorder with a Lease keeps those of other Leases away. A live one
#: writes twice in this time.
_FRESH: Final = 90_000
#: Milliseconds by which the clock of a live source may be behind that of the recorder before it.
_SKEW: Final = 10_000


class LedgerError(Exception):
    """A database that cannot be opened, read or written; the text names it."""


class FencedError(LedgerError):
    """Another process began to record. The refused write has changed nothing."""


def is_server(url: str) -> bool:
    """Whether a database is served to several machines; else it is a file."""
    return url.startswith(_POSTGRESQL)


def database_name(url: str) -> str:
    """The database in messages: without a password."""
    if not is_server(url):
        return url
    scheme, _, rest = url.partition("://")
    credentials, at, server = rest.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{server}"


class BegunSource(NamedTuple):
    """A source that its recorder has begun, or continues. Moments are Unix milliseconds."""

    #: Of its writes.
    generation: int
    began: int
    #: Up to this moment the source is recorded.
    until: int
    #: The end of the records of other sources, 0 without any.
    former: int


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
        self._engine.dispose()

    @property
    def engine(self) -> Engine:
        """For tests and statements of their own."""
        return self._engine

    def read(self, statement: Executable) -> Sequence[DatabaseRow[Any]]:
        """The rows of a statement. Raises LedgerError."""
        return self.read_all([statement])[0]

    def read_of(
        self, statement: Select[Any], column: ColumnElement[str], values: Sequence[str]
    ) -> Iterator[DatabaseRow[Any]]:
        """The rows with one of these values in a column; a query per `_CHUNK` values, so not in one order."""
        for first in range(0, len(values), _CHUNK):
            yield from self.read(statement.where(column.in_(values[first : first + _CHUNK])))

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

    def write(self, rows: Iterable[Row], source: str, until: int, generation: int) -> None:
        """Insert or update rows, and record `source` up to the moment `until`, in one transaction.

        `generation`: of `begin_source`. Raises FencedError if another process has begun a source since.
        """
        tables: dict[Table, list[dict[str, Any]]] = {}
        for row in rows:
            tables.setdefault(schema.TABLES[type(row)], []).append(msgspec.structs.asdict(row))
        try:
            with self._engine.begin() as connection:
                # The row is locked until the commit: the next recorder waits for what is written here, or prevents it.
                fence = schema.RECORDER
                held = fence.update().where(fence.c.generation == generation).values(source=source)
                if not connection.execute(held).rowcount:
                    raise FencedError(f"{self.name}: another process has begun to record into it")
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

    def begin_source(self, id: str, kind: str, began: int, lease: str) -> BegunSource:
        """Become the recorder of a source, which is added where it is new: writes of the recorder before are refused.

        `lease`: of the caller, "" without one. `began` of a live source is moved behind the records before where the
        clock of their recorder was a little ahead. Raises LedgerError, and leaves the recorder before, where the
        database has records of another source after `began`, or another Lease has a recorder at work.
        """
        fence, source = schema.RECORDER, schema.SOURCE
        try:
            with self._engine.begin() as connection:
                connection.execute(fence.update().values(generation=fence.c.generation + 1))
                before = connection.execute(select(fence)).one()
                sources = connection.execute(select(source).order_by(source.c.began)).all()
                others = [one for one in sources if one.id != id]
                last = max((one.recorded_until for one in others), default=0)
                if before.lease not in ("", lease) and began - last < _FRESH:
                    raise LedgerError(
                        f"{self.name}: the holder of Lease {before.lease} records into it: record into another "
                        f"database, or with --lease {before.lease}"
                    )
                if kind == "live" and began <= last < began + _SKEW:
                    began = last + 1
                for one in others:
                    if one.recorded_until >= began:
                        raise LedgerError(
                            f"{self.name}: it has records of a later or the same time ({one.kind} {one.id}): record "
                            "sources in the order of time, or into another database"
                        )
                known = next((one.recorded_until for one in sources if one.id == id), None)
                if known is None:
                    value = {"id": id, "kind": kind, "began": began, "recorded_until": began - 1}
                    connection.execute(source.insert(), [value])
                connection.execute(fence.update().values(lease=lease, source=id))
        except SQLAlchemyError as error:
            raise LedgerError(f"{self.name}: {_reason(error)}") from None
        return BegunSource(before.generation, began, began - 1 if known is None else known, last)


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
    if is_server(url):
        import psycopg

        from capcard_sched.ledger import postgres

        try:
            engine = create_engine(
                f"postgresql+psycopg://{url.partition('://')[2]}", module=psycopg, pool_pre_ping=True
            )
        except (ArgumentError, ValueError):
            raise LedgerError(f"{database_name(url)}: not a database URL: postgresql://USER@HOST:PORT/NAME") from None
        event.listen(engine, "do_connect", postgres.connect)
        return engine
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
