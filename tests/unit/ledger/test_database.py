"""Opening and migration of databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, String, Table, text

from capcard_sched.ledger import schema
from capcard_sched.ledger.database import LedgerDatabase, LedgerError, database_name
from capcard_sched.ledger.rows import ChargeRow


def test_migrations_create_the_tables_of_the_schema(new_url: Callable[[], str]) -> None:
    database = LedgerDatabase(new_url())
    with database.engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    database.close()
    assert [entry for entry in found if entry[0] != "remove_table" or entry[1].name != "alembic_version"] == []


def test_columns_are_the_fields_of_the_rows_in_their_order() -> None:
    for kind, table in schema.TABLES.items():
        fields = [field.name for field in msgspec.structs.fields(kind)]
        assert [column.name for column in table.columns] == fields


def test_charges_of_a_former_version_are_those_of_the_first_card(new_url: Callable[[], str]) -> None:
    """Tables of version 0002 with one charge, which the next version migrates."""
    url = new_url()
    database = LedgerDatabase(url)
    fields: dict[str, Any] = {field.name: "" for field in msgspec.structs.fields(ChargeRow) if field.name != "part"}
    numbers = {"life": 1, "thousandths": 2000, "began": 5, "ended": None, "gap": False}
    row = {**fields, "pod_uid": "p", "card": "A", **numbers}
    with database.engine.begin() as connection:
        connection.execute(text("DROP TABLE charge"))
        context = MigrationContext.configure(connection)
        _first_charge_table(Operations(context))
        connection.execute(Table("charge", MetaData(), autoload_with=connection).insert(), [row])
        connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    database.close()
    database = LedgerDatabase(url)
    found = [schema.read_row(ChargeRow, each) for each in database.read(schema.CHARGE.select())]
    with database.engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    database.close()
    assert [entry for entry in differences if entry[0] != "remove_table"] == []
    assert found == [ChargeRow(**row)]


def _first_charge_table(op: Operations) -> None:
    """`charge` as the first version created it."""
    texts: tuple[str, ...] = ("pod", "namespace", "job_uid", "queue", "user_label", "service_type", "card", "node")
    texts += ("end_reason", "preemptor", "uncounted", "resource_version")
    op.create_table(
        "charge",
        Column("pod_uid", String, primary_key=True, nullable=False),
        *(Column(name, String, nullable=False) for name in texts),
        Column("life", Integer, nullable=False),
        Column("thousandths", BigInteger, nullable=False),
        Column("began", BigInteger, nullable=False),
        Column("ended", BigInteger, nullable=True),
        Column("gap", Boolean, nullable=False),
    )
    op.create_index("charge_ended", "charge", ["ended"])
    op.create_index("charge_job", "charge", ["job_uid"])


def test_an_open_database_is_opened_again_for_reading_and_writing(new_url: Callable[[], str]) -> None:
    url = new_url()
    LedgerDatabase(url).close()
    for create in (True, False):
        database = LedgerDatabase(url, create=create)
        assert list(database.sources()) == []
        database.close()


def test_tables_of_a_newer_version_are_refused(new_url: Callable[[], str]) -> None:
    url = new_url()
    database = LedgerDatabase(url)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    database.close()
    for create in (True, False):
        with pytest.raises(LedgerError, match=r"newer version of this program \(tables later; accepted: \d+\)"):
            LedgerDatabase(url, create=create)


def test_messages_have_no_password() -> None:
    assert database_name("postgresql://me:secret@server:5432/x") == "postgresql://me@server:5432/x"
    with pytest.raises(LedgerError) as refused:
        LedgerDatabase("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(refused.value)
    assert str(refused.value).startswith("postgresql://me@127.0.0.1:1/x: cannot connect")


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no/ledger\.db: No such file or directory"):
        LedgerDatabase(str(tmp_path / "no" / "ledger.db"))


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    LedgerDatabase(str(tmp_path / "ledger.db")).close()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
