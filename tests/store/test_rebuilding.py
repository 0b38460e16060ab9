"""A lost store comes back from the artifacts."""

from __future__ import annotations

import random
from pathlib import Path

from xonar_prefect.core.identity import Recipe
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.store import Store

RECIPE = Recipe(flow="digits", entrypoint=None, task="train", profile_by=("model",))


def published() -> list[tuple[str, Profile | Observation, float]]:
    """Return what a few weeks have left behind: several kinds, models, versions and co-runs."""
    profiles = [
        Profile(
            key=f"kind-{number % 3}",
            device_model=("V100", "A100")[number % 2],
            active_fraction=number / 40,
            step_seconds=None if number % 4 == 0 else number / 10,
            joint=number % 4 == 0,
            peak_memory_mib=1000 + (number * 37) % 50,
            code_version=f"v{number % 2 + number // 20}",
        )
        for number in range(1, 40)
    ]
    co_runs = [
        Observation(
            device_model="V100",
            profile_key=f"kind-{number % 3}",
            partner_keys=("kind-0",),
            slowdown=1 + number / 100,
            steps=20,
            observed_at_s=float(number),
        )
        for number in range(40)
    ]
    return [(f"artifact-{at}", value, float(at)) for at, value in enumerate([*profiles, *co_runs])]


def ingest(store: Store, artifacts: list[tuple[str, Profile | Observation, float]]) -> None:
    for artifact_id, value, published_at_s in artifacts:
        if isinstance(value, Profile):
            store.ingest_profile(artifact_id, value, RECIPE, published_at_s)
        else:
            store.ingest_observation(artifact_id, value)


def test_lost_store_is_the_same_after_reading_the_artifacts_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    artifacts = published()
    with Store.open(f"sqlite:///{file}") as store:
        ingest(store, artifacts)
        before = (store.profiles(), store.observations(), store.recipes_for("digits", None))
    for each in tmp_path.iterdir():
        each.unlink()
    random.Random(7).shuffle(artifacts)
    with Store.open(f"sqlite:///{file}") as store:
        assert store.profiles() == ()
        ingest(store, artifacts)
        assert (store.profiles(), store.observations(), store.recipes_for("digits", None)) == before
