"""Profiles and recipes as rows: how they are taken in, corrected and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from sqlalchemy import func
from sqlmodel import Session, col, select

from xonar_prefect.core.codec import profile_from_dict, profile_to_dict
from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Profile
from xonar_prefect.store.merging import (
    DatedProfile,
    completed,
    merge,
    says_less,
    with_peak_floor,
)
from xonar_prefect.store.tables import ProfileRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """A profile, the recipe that made its key, and when it was last published (epoch seconds)."""

    profile: Profile
    recipe: Recipe
    published_at_s: float


class Taken(Enum):
    """How much of a profile from a file was taken in."""

    WHOLLY = "wholly"
    PARTLY = "partly"
    """It filled what was unknown, or raised a memory peak."""
    NOT = "not"
    """What is known is newer or says as much."""


def ingest(session: Session, profile: Profile, recipe: Recipe, published_at_s: float) -> None:
    """Merge a published profile into what is known of its code version."""
    figures = DatedProfile(profile=profile, published_at_s=published_at_s)
    identity = (profile.key, profile.device_model, profile.code_version or "")
    row = session.get(ProfileRow, identity, with_for_update=True)
    if row is None:
        session.add(_to_row(figures, recipe, published_at_s))
        return
    known = DatedProfile(profile=_profile(row), published_at_s=row.figures_published_at_s)
    if row.published_at_s > published_at_s:
        recipe, published_at_s = _recipe(row), row.published_at_s
    row.sqlmodel_update(_to_row(merge(known, figures), recipe, published_at_s))


def take_in(session: Session, offered: StoredProfile) -> Taken:
    """Take in a profile from a file; return how much of it.

    What is known never becomes poorer: a profile that says less only completes it.
    """
    profile = offered.profile
    known = _current_of(session, profile)
    if known is not None and says_less(profile, known):
        taken = Taken.PARTLY
        change(session, profile.key, profile.device_model, lambda found: completed(found, profile))
    else:
        taken = Taken.WHOLLY
        ingest(session, profile, offered.recipe, offered.published_at_s)
    session.flush()
    return Taken.NOT if _current_of(session, profile) == known else taken


def change(
    session: Session, key: str, device_model: str, corrected: Callable[[Profile], Profile]
) -> bool:
    """Correct the profile that counts; return False where none is known."""
    rows = session.exec(
        select(ProfileRow)
        .where(ProfileRow.key == key, ProfileRow.device_model == device_model)
        .with_for_update()
    ).all()
    if not rows:
        return False
    row = max(rows, key=_recency)
    figures = DatedProfile(
        profile=corrected(_profile(row)), published_at_s=row.figures_published_at_s
    )
    row.sqlmodel_update(_to_row(figures, _recipe(row), row.published_at_s))
    session.add(row)
    return True


def current(rows: Iterable[ProfileRow]) -> tuple[StoredProfile, ...]:
    """Return the profiles that count, the most recently published first.

    Of each kind on each device model that is the code version published last, of those that were
    measured if any was; the memory peaks of the others are its floor.
    """
    versions: dict[tuple[str, str], list[ProfileRow]] = {}
    for row in rows:
        versions.setdefault((row.key, row.device_model), []).append(row)
    stored = []
    for identity in sorted(versions):
        latest, *earlier = sorted(versions[identity], key=_recency, reverse=True)
        profile = _profile(latest)
        for row in earlier:
            profile = with_peak_floor(profile, _profile(row))
        stored.append(
            StoredProfile(
                profile=profile, recipe=_recipe(latest), published_at_s=latest.published_at_s
            )
        )
    return tuple(sorted(stored, key=lambda each: each.published_at_s, reverse=True))


def recipes(session: Session, flow: str, entrypoint: str | None) -> tuple[Recipe, ...]:
    """Return the latest recipe of each task of the flow, ordered by task.

    One without a code version, as from a file, counts only until a run has published its own.
    """
    published_at_s = func.max(ProfileRow.published_at_s)
    code_version = func.max(ProfileRow.code_version)
    found = session.exec(
        select(ProfileRow.task, ProfileRow.profile_by, code_version, published_at_s)
        .where(ProfileRow.flow == flow, ProfileRow.entrypoint == entrypoint)
        .group_by(col(ProfileRow.task), col(ProfileRow.profile_by))
        .order_by(published_at_s)
    ).all()
    of_runs = [each for each in found if each[2]] or found
    latest = {task: profile_by for task, profile_by, *_ in of_runs}
    return tuple(
        Recipe(flow=flow, entrypoint=entrypoint, task=task, profile_by=_from_text(latest[task]))
        for task in sorted(latest)
    )


def _current_of(session: Session, profile: Profile) -> Profile | None:
    rows = session.exec(
        select(ProfileRow).where(
            ProfileRow.key == profile.key, ProfileRow.device_model == profile.device_model
        )
    ).all()
    return next((each.profile for each in current(rows)), None)


def _recency(row: ProfileRow) -> tuple[bool, float, str]:
    # A table taken in says nothing of steps or code: it must not hide what was measured.
    return (row.steps > 0, row.published_at_s, row.code_version)


def _profile(row: ProfileRow) -> Profile:
    profile = profile_from_dict(row.model_dump())
    return replace(profile, code_version=profile.code_version or None)


def _recipe(row: ProfileRow) -> Recipe:
    return Recipe(
        flow=row.flow,
        entrypoint=row.entrypoint,
        task=row.task,
        profile_by=_from_text(row.profile_by),
    )


def _to_row(figures: DatedProfile, recipe: Recipe, published_at_s: float) -> ProfileRow:
    values = profile_to_dict(figures.profile)
    values["code_version"] = figures.profile.code_version or ""
    return ProfileRow(
        **values,
        flow=recipe.flow,
        entrypoint=recipe.entrypoint,
        task=recipe.task,
        profile_by=None if recipe.profile_by is None else json.dumps(recipe.profile_by),
        figures_published_at_s=figures.published_at_s,
        published_at_s=published_at_s,
    )


def _from_text(profile_by: str | None) -> tuple[str, ...] | None:
    return None if profile_by is None else tuple(json.loads(profile_by))
