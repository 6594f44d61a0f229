"""Runs the migrations on the connection that `database` provides. Executed by Alembic."""

from alembic import context

from capcard_sched.ledger.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
