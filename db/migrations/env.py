"""Alembic runs this file as a script; the store hands it an open transaction."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes["metadata"],
    version_table=attributes["version_table"],
)
with context.begin_transaction():
    context.run_migrations()
