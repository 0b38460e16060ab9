"""Note pool and host of a release, every transition of its slot, and quarantines of devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlmodel import AutoString

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the revision before to this one."""
    with op.batch_alter_table("xonar_ledger") as ledger:
        ledger.add_column(sa.Column("pool", AutoString()))
        ledger.add_column(sa.Column("host", AutoString()))
        ledger.add_column(sa.Column("freed_at_s", sa.Float()))
    op.create_table(
        "xonar_transition",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("state", AutoString(), nullable=False),
        sa.Column("run_id", AutoString(), nullable=False),
        sa.Column("reserved_at_s", sa.Float(), nullable=False),
        sa.Column("worker", AutoString(), nullable=False),
        sa.Column("pool", AutoString()),
        sa.Column("host", AutoString()),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("request_mib", sa.BigInteger()),
        sa.Column("partners", sa.JSON(), nullable=False),
        sa.Column("launcher_pid", sa.Integer()),
        sa.Column("launcher_started_ticks", sa.BigInteger()),
        sa.Column("boot_id", AutoString()),
        sa.Column("exit_code", sa.Integer()),
        sa.PrimaryKeyConstraint("number", name="pk_xonar_transition"),
    )
    op.create_index("ix_xonar_transition_at_s", "xonar_transition", ["at_s"])
    op.create_index("ix_xonar_transition_run_id", "xonar_transition", ["run_id"])
    op.create_table(
        "xonar_quarantine",
        sa.Column("host", AutoString(), nullable=False),
        sa.Column("device", AutoString(), nullable=False),
        sa.Column("cause", AutoString(), nullable=False),
        sa.Column("begun_at_s", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("until_s", sa.Float()),
        sa.Column("ended_at_s", sa.Float()),
        sa.Column("pids", sa.JSON(), nullable=False),
        sa.Column("used_mib", sa.BigInteger()),
        sa.PrimaryKeyConstraint(
            "host", "device", "cause", "begun_at_s", name="pk_xonar_quarantine"
        ),
    )


def downgrade() -> None:
    """Bring the schema back to the revision before."""
    op.drop_table("xonar_quarantine")
    op.drop_table("xonar_transition")
    with op.batch_alter_table("xonar_ledger") as ledger:
        for column in ("freed_at_s", "host", "pool"):
            ledger.drop_column(column)
