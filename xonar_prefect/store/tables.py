"""The tables, private to the store. Their names and columns are never renamed.

Columns bear the names of the core value's fields, so `core.codec` reads and writes them; a value
that gains a field needs a migration. Everything is prefixed, since the database may be shared
with other applications.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, MetaData, Text
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

VERSION_TABLE = "xonar_alembic_version"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_NULLABLE_JSON = JSON(none_as_null=True)


class _Row(SQLModel, registry=registry(metadata=metadata)):
    """Keeps our tables out of the metadata that an application's own SQLModels share."""


class IngestedArtifactRow(_Row, table=True):
    """An artifact that was read; it stays when what was learnt from it is forgotten."""

    __tablename__: ClassVar[str] = "xonar_ingested_artifact"

    artifact_id: str = Field(primary_key=True)


class ProfileRow(_Row, table=True):
    """A profile of one code version, with the recipe that made its key.

    `code_version` is `""` for an unknown one: a primary key has no NULL.
    """

    __tablename__: ClassVar[str] = "xonar_profile"

    key: str = Field(primary_key=True)
    device_model: str = Field(primary_key=True)
    code_version: str = Field(primary_key=True)
    active_fraction: float | None = None
    communication_fraction: float | None = None
    input_fraction: float | None = None
    other_fraction: float | None = None
    step_seconds: float | None = None
    step_seconds_interval: list[float] | None = Field(default=None, sa_type=_NULLABLE_JSON)
    active_fraction_interval: list[float] | None = Field(default=None, sa_type=_NULLABLE_JSON)
    peak_memory_mib: int | None = Field(default=None, sa_type=BigInteger)
    memory_source: str | None = None
    held_memory_mib: int | None = Field(default=None, sa_type=BigInteger)
    peak_host_memory_mib: int | None = Field(default=None, sa_type=BigInteger)
    steps: int = 0
    source: str | None = None
    framework: str | None = None
    device: str | None = None
    joint: bool = False
    measured_at_s: float = 0.0
    flow: str = Field(index=True)
    entrypoint: str | None = None
    task: str
    profile_by: str | None = Field(default=None, sa_type=Text)  # JSON as text: it is grouped by
    figures_published_at_s: float
    published_at_s: float


class ObservationRow(_Row, table=True):
    """A measured co-run."""

    __tablename__: ClassVar[str] = "xonar_observation"

    artifact_id: str = Field(primary_key=True)
    device_model: str
    profile_key: str = Field(index=True)
    partner_keys: str = Field(sa_type=Text)  # JSON as text: it is partitioned by
    slowdown: float
    steps: int
    observed_at_s: float = Field(index=True)


class DurationRow(_Row, table=True):
    """Durations of finished trainings of one kind, as a sum."""

    __tablename__: ClassVar[str] = "xonar_duration"

    key: str = Field(primary_key=True)
    device_model: str = Field(primary_key=True)
    trainings: int = 0
    total_seconds: float = 0.0


class LedgerRow(_Row, table=True):
    """One release of one training."""

    __tablename__: ClassVar[str] = "xonar_ledger"

    run_id: str = Field(primary_key=True)
    reserved_at_s: float = Field(primary_key=True)
    name: str
    worker: str = Field(index=True)
    pool: str | None = None
    host: str | None = None
    state: str = Field(index=True)
    devices: list[str] = Field(sa_type=JSON)
    device_model: str
    request_mib: int | None = Field(default=None, sa_type=BigInteger)
    profile_key: str | None = None
    partners: list[str] = Field(sa_type=JSON)
    code: str
    reason: str = Field(sa_type=Text)
    predicted_slowdown: float | None = None
    run_directory: str
    launcher_pid: int | None = None
    launcher_started_ticks: int | None = Field(default=None, sa_type=BigInteger)
    boot_id: str | None = None
    launched_at_s: float | None = None
    ended_at_s: float | None = None
    exit_code: int | None = None
    freed_at_s: float | None = None
    concluded_at_s: float | None = None
    co_runs: list[dict[str, Any]] = Field(sa_type=JSON)


class TransitionRow(_Row, table=True):
    """A step in the life of a slot: written once, never changed."""

    __tablename__: ClassVar[str] = "xonar_transition"

    number: int | None = Field(default=None, primary_key=True)
    at_s: float = Field(index=True)
    state: str
    run_id: str = Field(index=True)
    reserved_at_s: float
    worker: str
    pool: str | None = None
    host: str | None = None
    devices: list[str] = Field(sa_type=JSON)
    request_mib: int | None = Field(default=None, sa_type=BigInteger)
    partners: list[str] = Field(sa_type=JSON)
    launcher_pid: int | None = None
    launcher_started_ticks: int | None = Field(default=None, sa_type=BigInteger)
    boot_id: str | None = None
    exit_code: int | None = None


class QuarantineRow(_Row, table=True):
    """A time in which a device took no training."""

    __tablename__: ClassVar[str] = "xonar_quarantine"

    host: str = Field(primary_key=True)
    device: str = Field(primary_key=True)
    cause: str = Field(primary_key=True)
    begun_at_s: float = Field(primary_key=True)
    reason: str = Field(sa_type=Text)
    until_s: float | None = None
    ended_at_s: float | None = None
    pids: list[int] = Field(sa_type=JSON)
    used_mib: int | None = Field(default=None, sa_type=BigInteger)
