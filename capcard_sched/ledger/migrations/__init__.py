"""Migrations of the ledger, for Alembic. A change of the tables is one more module of `versions`."""
