"""Note when the run of a release was concluded, which may be long after its devices were free."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the revision before to this one."""
    with op.batch_alter_table("xonar_ledger") as ledger:
        ledger.add_column(sa.Column("concluded_at_s", sa.Float()))


def downgrade() -> None:
    """Bring the schema back to the revision before."""
    with op.batch_alter_table("xonar_ledger") as ledger:
        ledger.drop_column("concluded_at_s")
