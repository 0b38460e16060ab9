"""Profiles know main memory, and what is held on the device."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COLUMNS = ("held_memory_mib", "peak_host_memory_mib")


def upgrade() -> None:
    """Bring the schema from the revision before to this one."""
    for name in _COLUMNS:
        op.add_column("xonar_profile", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    """Bring the schema back to the revision before."""
    for name in _COLUMNS:
        op.drop_column("xonar_profile", name)
