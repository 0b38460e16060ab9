"""Create the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlmodel import AutoString

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the revision before to this one."""
    op.create_table(
        "xonar_ingested_artifact",
        sa.Column("artifact_id", AutoString(), nullable=False),
        sa.PrimaryKeyConstraint("artifact_id", name="pk_xonar_ingested_artifact"),
    )
    op.create_table(
        "xonar_profile",
        sa.Column("key", AutoString(), nullable=False),
        sa.Column("device_model", AutoString(), nullable=False),
        sa.Column("code_version", AutoString(), nullable=False),
        sa.Column("active_fraction", sa.Float()),
        sa.Column("communication_fraction", sa.Float()),
        sa.Column("input_fraction", sa.Float()),
        sa.Column("other_fraction", sa.Float()),
        sa.Column("step_seconds", sa.Float()),
        sa.Column("step_seconds_interval", sa.JSON(none_as_null=True)),
        sa.Column("active_fraction_interval", sa.JSON(none_as_null=True)),
        sa.Column("peak_memory_mib", sa.BigInteger()),
        sa.Column("memory_source", AutoString()),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("source", AutoString()),
        sa.Column("framework", AutoString()),
        sa.Column("device", AutoString()),
        sa.Column("joint", sa.Boolean(), nullable=False),
        sa.Column("measured_at_s", sa.Float(), nullable=False),
        sa.Column("flow", AutoString(), nullable=False),
        sa.Column("entrypoint", AutoString()),
        sa.Column("task", AutoString(), nullable=False),
        sa.Column("profile_by", sa.Text()),
        sa.Column("figures_published_at_s", sa.Float(), nullable=False),
        sa.Column("published_at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key", "device_model", "code_version", name="pk_xonar_profile"),
    )
    op.create_index("ix_xonar_profile_flow", "xonar_profile", ["flow"])
    op.create_table(
        "xonar_observation",
        sa.Column("artifact_id", AutoString(), nullable=False),
        sa.Column("device_model", AutoString(), nullable=False),
        sa.Column("profile_key", AutoString(), nullable=False),
        sa.Column("partner_keys", sa.Text(), nullable=False),
        sa.Column("slowdown", sa.Float(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("observed_at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("artifact_id", name="pk_xonar_observation"),
    )
    op.create_index("ix_xonar_observation_profile_key", "xonar_observation", ["profile_key"])
    op.create_index("ix_xonar_observation_observed_at_s", "xonar_observation", ["observed_at_s"])
    op.create_table(
        "xonar_duration",
        sa.Column("key", AutoString(), nullable=False),
        sa.Column("device_model", AutoString(), nullable=False),
        sa.Column("trainings", sa.Integer(), nullable=False),
        sa.Column("total_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key", "device_model", name="pk_xonar_duration"),
    )
    op.create_table(
        "xonar_ledger",
        sa.Column("run_id", AutoString(), nullable=False),
        sa.Column("reserved_at_s", sa.Float(), nullable=False),
        sa.Column("name", AutoString(), nullable=False),
        sa.Column("worker", AutoString(), nullable=False),
        sa.Column("state", AutoString(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("device_model", AutoString(), nullable=False),
        sa.Column("request_mib", sa.BigInteger()),
        sa.Column("profile_key", AutoString()),
        sa.Column("partners", sa.JSON(), nullable=False),
        sa.Column("code", AutoString(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("predicted_slowdown", sa.Float()),
        sa.Column("run_directory", AutoString(), nullable=False),
        sa.Column("launcher_pid", sa.Integer()),
        sa.Column("launcher_started_ticks", sa.BigInteger()),
        sa.Column("boot_id", AutoString()),
        sa.Column("launched_at_s", sa.Float()),
        sa.Column("ended_at_s", sa.Float()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("co_runs", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "reserved_at_s", name="pk_xonar_ledger"),
    )
    op.create_index("ix_xonar_ledger_worker", "xonar_ledger", ["worker"])
    op.create_index("ix_xonar_ledger_state", "xonar_ledger", ["state"])


def downgrade() -> None:
    """Bring the schema back to the revision before."""
    for table in (
        "xonar_ledger",
        "xonar_duration",
        "xonar_observation",
        "xonar_profile",
        "xonar_ingested_artifact",
    ):
        op.drop_table(table)
