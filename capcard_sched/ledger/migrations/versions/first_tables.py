"""The first tables."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, String

revision = "0001"
down_revision = None


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, String, nullable=False) for name in names]


def _integers(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _keys(*names: str) -> list[Column[str]]:
    return [Column(name, String, primary_key=True, nullable=False) for name in names]


def _moment(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, nullable=False, autoincrement=False)


def _optional(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=True) for name in names]


def _number(name: str, *, key: bool = False) -> Column[int]:
    return Column(name, Integer, primary_key=key, nullable=False, autoincrement=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def upgrade() -> None:
    """Create the tables."""
    op.create_table("source", *_keys("id"), *_texts("kind"), *_integers("began", "recorded_until"))
    op.create_table(
        "job",
        *_keys("uid"),
        _number("life", key=True),
        *_texts("namespace", "name", "kind", "owner", "queue", "user_label", "service_type"),
        _number("priority"),
        _number("min_member"),
        *_texts("card"),
        *_integers("submitted"),
        *_optional("admitted", "first_scheduled", "whole", "ended"),
        *_texts("outcome"),
        _flag("gap"),
    )
    op.create_index("job_name", "job", ["name"])
    op.create_index("job_submitted", "job", ["submitted"])
    op.create_index("job_ended", "job", ["ended"])
    op.create_table(
        "stage",
        *_keys("uid"),
        _number("life", key=True),
        _moment("began"),
        *_texts("stage"),
        *_optional("ended"),
    )
    op.create_table(
        "charge",
        *_keys("pod_uid"),
        *_texts("pod", "namespace", "job_uid"),
        _number("life"),
        *_texts("queue", "user_label", "service_type", "card"),
        *_integers("thousandths"),
        *_texts("node"),
        *_integers("began"),
        *_optional("ended"),
        *_texts("end_reason", "preemptor", "uncounted", "resource_version"),
        _flag("gap"),
    )
    op.create_index("charge_ended", "charge", ["ended"])
    op.create_index("charge_job", "charge", ["job_uid"])
    op.create_table("capacity", *_keys("card"), _moment("at"), *_integers("total", "unavailable"))
    op.create_table("quota", *_keys("queue", "card"), _moment("at"), *_optional("thousandths"), *_texts("parent"))
    op.create_table(
        "daily_use",
        _moment("day"),
        *_keys("queue", "card", "namespace", "user_label", "service_type"),
        *_integers("used", "evicted"),
    )
    op.create_table("daily_quota", _moment("day"), *_keys("queue", "card"), *_integers("quota", "idle", "lent"))


def downgrade() -> None:
    for table in ("daily_quota", "daily_use", "quota", "capacity", "charge", "stage", "job", "source"):
        op.drop_table(table)
