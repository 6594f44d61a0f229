"""A row of `charge` for each card of a pod."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TEXTS = ("pod", "namespace", "job_uid"), ("queue", "user_label", "service_type", "card"), ("node",)
_NAMES = (
    *("pod_uid", *_TEXTS[0], "life", *_TEXTS[1], "thousandths", *_TEXTS[2], "began", "ended"),
    *("end_reason", "preemptor", "uncounted", "resource_version", "gap"),
)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=False)


def upgrade() -> None:
    """Copy the table to one whose key has the part: SQLite cannot change a key."""
    table = op.create_table(
        "charge_parts",
        sa.Column("pod_uid", sa.String(), primary_key=True, nullable=False),
        *map(_text, _TEXTS[0]),
        sa.Column("life", sa.Integer(), nullable=False),
        *map(_text, _TEXTS[1]),
        sa.Column("thousandths", sa.BigInteger(), nullable=False),
        *map(_text, _TEXTS[2]),
        sa.Column("began", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        *map(_text, ("end_reason", "preemptor", "uncounted", "resource_version")),
        sa.Column("gap", sa.Boolean(), nullable=False),
        sa.Column("part", sa.Integer(), primary_key=True, nullable=False, autoincrement=False),
    )
    former = sa.table("charge", *map(sa.column, _NAMES))
    rows = sa.select(*former.c, sa.literal(0))
    op.execute(table.insert().from_select([*_NAMES, "part"], rows))
    op.drop_table("charge")
    op.rename_table("charge_parts", "charge")
    op.create_index("charge_ended", "charge", ["ended"])
    op.create_index("charge_job", "charge", ["job_uid"])


def downgrade() -> None:
    raise NotImplementedError("a database that was migrated is read by newer versions only")
