"""The table of the process that records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table with its row."""
    table = op.create_table(
        "recorder",
        sa.Column("id", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("lease", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
    )
    op.bulk_insert(table, [{"id": 1, "generation": 0, "lease": "", "source": ""}])


def downgrade() -> None:
    op.drop_table("recorder")
