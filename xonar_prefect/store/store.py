"""The store: what the worker has learnt and what it has released."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import func
from sqlmodel import Session, col, delete, select

from xonar_prefect.core.codec import (
    observation_from_dict,
    observation_to_dict,
)
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.ledger import LedgerEntry, Transition
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.core.quarantine import Quarantine
from xonar_prefect.store import ledger, profiles, retention
from xonar_prefect.store.database import Database
from xonar_prefect.store.profiles import StoredProfile, Taken
from xonar_prefect.store.tables import (
    DurationRow,
    IngestedArtifactRow,
    ObservationRow,
    ProfileRow,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_OBSERVATIONS_PER_PAIR = 10
_OBSERVATIONS = 5000


class Store:
    """Remembers profiles, observed pairs, durations and the ledger in a database.

    It may be called from several threads, and several workers may share one database. Every
    method may raise `StoreUnusableError`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str) -> Store:
        """Open the store at a SQLAlchemy address, creating or migrating it where necessary.

        Raises:
            StoreTooNewError: A newer version of this package has written it.
            StoreUnusableError: It cannot be reached, read or written.
        """
        return cls(Database.open(url))

    def close(self) -> None:
        """Close the connections to the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has_ingested(self, artifact_id: str) -> bool:
        """Tell whether this artifact was read before."""
        with self._database.reading() as session:
            return session.get(IngestedArtifactRow, artifact_id) is not None

    def ingest_profile(
        self, artifact_id: str, profile: Profile, recipe: Recipe, published_at_s: float
    ) -> bool:
        """Take in a published profile; return False for an artifact that was read before.

        The code version that was published last counts, and of it the newest figures with a known
        step time. A memory peak is never lowered, by another code version neither. The result
        does not depend on the order in which artifacts are read.
        """

        def work(session: Session) -> bool:
            if not _is_new(session, artifact_id):
                return False
            profiles.ingest(session, profile, recipe, published_at_s)
            return True

        return self._database.write(work)

    def import_profile(self, offered: StoredProfile) -> Taken:
        """Take in a profile from a file; return how much of it.

        What is known and newer stays, and nothing that is known is lost: a profile that rests on
        no steps, or lacks the code version or the step time that is known, only completes it.
        """
        return self._database.write(lambda session: profiles.take_in(session, offered))

    def raise_peak(self, key: str, device_model: str, peak_memory_mib: int) -> bool:
        """Raise the memory peak of a known profile; return False where none is known."""

        def raised(known: Profile) -> Profile:
            if peak_memory_mib <= (known.peak_memory_mib or 0):
                return known
            return replace(known, peak_memory_mib=peak_memory_mib)

        return self._database.write(
            lambda session: profiles.change(session, key, device_model, raised)
        )

    def set_step_seconds(
        self, key: str, device_model: str, step_seconds: float, steps: int
    ) -> bool:
        """Set the step time seen while a training was alone; return False where none is known.

        It stands until a profile with a step time of its own is published.
        """

        def corrected(known: Profile) -> Profile:
            return replace(
                known, step_seconds=step_seconds, step_seconds_interval=None, steps=steps
            )

        return self._database.write(
            lambda session: profiles.change(session, key, device_model, corrected)
        )

    def profiles_for(self, key: str) -> Mapping[str, Profile]:
        """Return the profiles of a kind by device model."""
        with self._database.reading() as session:
            rows = session.exec(select(ProfileRow).where(ProfileRow.key == key)).all()
        return {each.profile.device_model: each.profile for each in profiles.current(rows)}

    def profiles(self) -> tuple[StoredProfile, ...]:
        """Return all profiles, the most recently published first."""
        with self._database.reading() as session:
            return profiles.current(session.exec(select(ProfileRow)).all())

    def profile_keys(self) -> frozenset[str]:
        """Return the keys of all kinds with a profile."""
        with self._database.reading() as session:
            return frozenset(session.exec(select(ProfileRow.key).distinct()).all())

    def recipes_for(self, flow: str, entrypoint: str | None) -> tuple[Recipe, ...]:
        """Return the latest recipe of each training task of a flow, ordered by task."""
        with self._database.reading() as session:
            return profiles.recipes(session, flow, entrypoint)

    def forget(self, key: str) -> bool:
        """Forget all that was measured of a kind; return False where nothing was known.

        The artifacts it came from are not read again, except by a store that was lost.
        """
        is_partner = col(ObservationRow.partner_keys).contains(json.dumps(key), autoescape=True)
        statements = (
            delete(ProfileRow).where(col(ProfileRow.key) == key),
            delete(DurationRow).where(col(DurationRow.key) == key),
            delete(ObservationRow).where((col(ObservationRow.profile_key) == key) | is_partner),
        )

        def work(session: Session) -> bool:
            return sum(session.exec(statement).rowcount for statement in statements) > 0

        return self._database.write(work)

    def ingest_observation(self, artifact_id: str, observation: Observation) -> bool:
        """Take in a published co-run; return False for an artifact that was read before."""
        values = observation_to_dict(observation)
        values["partner_keys"] = json.dumps(sorted(observation.partner_keys))

        def work(session: Session) -> bool:
            if not _is_new(session, artifact_id):
                return False
            session.add(ObservationRow(artifact_id=artifact_id, **values))
            return True

        return self._database.write(work)

    def observations(self) -> tuple[Observation, ...]:
        """Return the latest co-runs, newest first, at most ten of each combination."""
        newest_first = (col(ObservationRow.observed_at_s).desc(), col(ObservationRow.artifact_id))
        combination = (
            ObservationRow.device_model,
            ObservationRow.profile_key,
            ObservationRow.partner_keys,
        )
        ranked = select(
            ObservationRow.artifact_id,
            func.row_number().over(partition_by=combination, order_by=newest_first).label("place"),
        ).subquery()
        statement = (
            select(ObservationRow)
            .join(ranked, col(ObservationRow.artifact_id) == ranked.c.artifact_id)
            .where(ranked.c.place <= _OBSERVATIONS_PER_PAIR)
            .order_by(*newest_first)
            .limit(_OBSERVATIONS)
        )
        with self._database.reading() as session:
            rows = session.exec(statement).all()
        return tuple(
            observation_from_dict(
                {**row.model_dump(), "partner_keys": json.loads(row.partner_keys)}
            )
            for row in rows
        )

    def note_memory(
        self,
        key: str,
        device_model: str,
        peak_host_memory_mib: int | None,
        held_memory_mib: int | None,
    ) -> bool:
        """Note what a run's processes were seen to use; return False where no profile is known.

        The peak of main memory is never lowered. What was held on the device is that of the latest
        run: it falls when a framework no longer takes in advance what it does not need.
        """

        def noted(known: Profile) -> Profile:
            host_mib = max(peak_host_memory_mib or 0, known.peak_host_memory_mib or 0) or None
            held_mib = held_memory_mib or known.held_memory_mib
            return replace(known, peak_host_memory_mib=host_mib, held_memory_mib=held_mib)

        return self._database.write(
            lambda session: profiles.change(session, key, device_model, noted)
        )

    def record_duration(self, key: str, device_model: str, seconds: float) -> None:
        """Note how long a training of this kind took, or would have taken alone."""

        def work(session: Session) -> None:
            row = session.get(DurationRow, (key, device_model), with_for_update=True)
            row = row or DurationRow(key=key, device_model=device_model)
            row.trainings += 1
            row.total_seconds += seconds
            session.add(row)

        self._database.write(work)

    def mean_duration(self, key: str, device_model: str) -> float | None:
        """Return the mean of the noted durations in seconds; None where there is none."""
        with self._database.reading() as session:
            row = session.get(DurationRow, (key, device_model))
            return None if row is None else row.total_seconds / row.trainings

    def mean_durations(self) -> Mapping[tuple[str, str], float]:
        """Return the means of the noted durations in seconds, by profile key and device model."""
        with self._database.reading() as session:
            rows = session.exec(select(DurationRow)).all()
        return {(row.key, row.device_model): row.total_seconds / row.trainings for row in rows}

    def record(self, entry: LedgerEntry) -> None:
        """Write a release down, replacing what was known of it; its transitions are kept."""
        self._database.write(lambda session: ledger.record(session, entry))

    def open_entries(
        self, worker: str | None = None, *, pool: str | None = None, host: str | None = None
    ) -> tuple[LedgerEntry, ...]:
        """Return the releases whose slot is not free again, newest first.

        Args:
            worker: Only those of workers of this name; a name means one worker only together
                with its pool and host.
            pool: Only those of this pool.
            host: Only those on this host.
        """
        with self._database.reading() as session:
            return ledger.entries(session, worker=worker, pool=pool, host=host, only_open=True)

    def entries(
        self, limit: int = 100, *, run_id: str | None = None, worker: str | None = None
    ) -> tuple[LedgerEntry, ...]:
        """Return the latest releases, newest first; of one run or one worker where given."""
        with self._database.reading() as session:
            return ledger.entries(session, limit=limit, run_id=run_id, worker=worker)

    def remove_ended(self, before_s: float, limit: int) -> int:
        """Forget releases that ended before this time, at most so many; return how many."""
        return self._database.write(
            lambda session: retention.remove_ended(session, before_s, limit)
        )

    def remove_observations(self, before_s: float, limit: int) -> int:
        """Forget co-runs measured before this time, at most so many; return how many."""
        return self._database.write(
            lambda session: retention.remove_observations(session, before_s, limit)
        )

    def transitions(
        self, limit: int | None = 1000, *, run_id: str | None = None
    ) -> tuple[Transition, ...]:
        """Return the latest transitions of slots, oldest first; of one run where given."""
        with self._database.reading() as session:
            return ledger.transitions(session, limit=limit, run_id=run_id)

    def record_quarantine(self, quarantine: Quarantine) -> None:
        """Write a quarantine of a device down, replacing what was known of it."""
        self._database.write(lambda session: ledger.record_quarantine(session, quarantine))

    def open_quarantines(self, host: str) -> tuple[Quarantine, ...]:
        """Return the quarantines of a host's devices that last, in the order of their beginning."""
        with self._database.reading() as session:
            return ledger.quarantines(session, host, only_open=True, since_s=None)

    def quarantines(self, host: str, since_s: float = 0.0) -> tuple[Quarantine, ...]:
        """Return all quarantines of a host's devices that began since then, oldest first."""
        with self._database.reading() as session:
            return ledger.quarantines(session, host, only_open=False, since_s=since_s)


def _is_new(session: Session, artifact_id: str) -> bool:
    """Note the artifact; a competing reader's note of it fails and comes here again."""
    if session.get(IngestedArtifactRow, artifact_id) is not None:
        return False
    session.add(IngestedArtifactRow(artifact_id=artifact_id))
    session.flush()
    return True
