"""What the profiling task run does with what a worker knows and with what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.runtime import flow_run

from tests.tasks.conftest import Left
from tests.waiting import until
from xonar_prefect import steps, xonar_task
from xonar_prefect.core.codec import profile_from_dict, recipe_from_dict
from xonar_prefect.core.models import Profile
from xonar_prefect.profiling import Window
from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE, RunDirectory
from xonar_prefect.tasks import profile_step
from xonar_prefect.tasks.publishing import slug

pytestmark = pytest.mark.server

SHORT = Window(warm_up=1, minimum=2, maximum=5)
PEAK_GROWTH_RATIO = profile_step._PEAK_GROWTH_RATIO
Read = Callable[[UUID], Left]
Place = Callable[..., RunDirectory]


@xonar_task(window=SHORT)
def train(size: int) -> int:
    return sum(1 for _ in steps(range(size), total=size))


@flow(version="v1")
def study(size: int = 12) -> UUID:
    train(size)
    return UUID(flow_run.get_id())


def published(directory: RunDirectory) -> int:
    status = directory.read_status()
    return 0 if status is None else status.profiles_published


def peak_of(directory: RunDirectory) -> int:
    status = directory.read_status()
    return 0 if status is None else status.peak_memory_mib or 0


def only_profile(left: Left) -> Profile:
    (data,) = left.data
    return profile_from_dict(data["profile"])


def known(profile: Profile, **changes: Any) -> dict[str, Any]:
    return {profile.key: replace(profile, **changes)}


@pytest.fixture
def first(left_by: Read, placed: Place) -> Profile:
    """The profile of a first run on a processor core."""
    placed(device_kind="cpu", device_model="cpu-core", devices=("cpu-1",), entrypoint="e.py:f")
    return only_profile(left_by(study()))


def place_again(placed: Place, profiles: dict[str, Profile], **values: Any) -> RunDirectory:
    return placed(
        device_kind="cpu",
        device_model="cpu-core",
        devices=("cpu-1",),
        entrypoint="e.py:f",
        known_profiles=profiles,
        **values,
    )


def test_a_profile_says_where_it_was_measured(first: Profile) -> None:
    assert (first.device_model, first.device) == ("cpu-core", "cpu-1")
    assert (first.code_version, first.joint, first.memory_source) == ("v1", False, "rss")
    assert first.step_seconds is not None
    assert first.active_fraction is not None


def test_the_key_can_be_made_again_from_what_is_published(left_by: Read, placed: Place) -> None:
    placed(entrypoint="e.py:f", gpus=2)
    (data,) = left_by(study(7)).data
    recipe = recipe_from_dict(data["recipe"])
    assert recipe.entrypoint == "e.py:f"
    assert data["gpus"] == 2
    assert recipe.key_for(data["parameters"], data["gpus"]) == data["profile"]["key"]


def test_progress_is_reported_to_the_worker(left_by: Read, placed: Place) -> None:
    directory = placed()
    left_by(study(12))
    status = directory.read_status()
    assert status is not None
    assert (status.phase, status.steps_done, status.steps_total) == ("done", 12, 12)
    assert status.profiles_published == 1
    assert status.peak_memory_mib is not None


def test_a_known_profile_is_cached_and_progress_goes_on(
    first: Profile, left_by: Read, placed: Place
) -> None:
    directory = place_again(placed, known(first))
    left = left_by(study())
    assert left.task_runs["profile train"] == "Cached"
    assert left.data == []
    status = directory.read_status()
    assert status is not None
    assert status.phase == "done"


def test_other_code_is_measured_again_above_the_old_peak(
    first: Profile, left_by: Read, placed: Place
) -> None:
    place_again(placed, known(first, code_version="v0", peak_memory_mib=99_000))
    again = only_profile(left_by(study()))
    assert (again.code_version, again.peak_memory_mib) == ("v1", 99_000)


def test_a_profile_without_a_solo_step_time_is_completed_when_alone(
    first: Profile, left_by: Read, placed: Place
) -> None:
    place_again(placed, known(first, step_seconds=None, step_seconds_interval=None))
    assert only_profile(left_by(study())).step_seconds is not None


def test_beside_a_partner_a_profile_is_joint(left_by: Read, placed: Place) -> None:
    placed(shared=True)
    left = left_by(study())
    profile = only_profile(left)
    assert profile.joint
    assert profile.step_seconds is None
    assert profile.peak_memory_mib is not None
    window = left.data[0]["window"]
    assert window["step_seconds"] > 0
    assert "beside a partner" in left.cards[0].data


def test_an_unreadable_placement_does_no_harm(
    left_by: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "placement.json").write_text('{"known_profiles": 3}')
    monkeypatch.setenv(RUN_DIRECTORY_VARIABLE, str(tmp_path))
    assert left_by(study()).profile_states in ([], ["Completed"])


def test_when_publishing_fails_the_training_is_unharmed(
    left_by: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: SyncPrefectClient, artifact: ArtifactCreate) -> None:
        raise OSError("the server is gone")

    monkeypatch.setattr(SyncPrefectClient, "create_artifact", refuse)
    left = left_by(study())
    assert left.task_runs["profile train"] == "Unprofiled"
    assert "the server is gone" in left.messages["profile train"]


def test_a_card_that_cannot_be_published_takes_nothing_from_the_data(
    left_by: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SyncPrefectClient.create_artifact

    def only_data(self: SyncPrefectClient, artifact: ArtifactCreate) -> Any:
        if artifact.type == "markdown":
            raise OSError("too large")
        return create(self, artifact)

    monkeypatch.setattr(SyncPrefectClient, "create_artifact", only_data)
    left = left_by(study())
    assert left.task_runs["profile train"] == "Completed"
    assert len(left.data) == 1


def test_a_profile_is_published_while_the_training_goes_on(left_by: Read, placed: Place) -> None:
    directory = placed()
    seen: list[str] = []

    @xonar_task(window=SHORT)
    def long() -> None:
        list(steps(range(12)))
        until(lambda: published(directory) == 1)
        status = directory.read_status()
        assert status is not None
        seen.append(status.phase)
        list(steps(range(3)))

    @flow
    def parent() -> UUID:
        long()
        return UUID(flow_run.get_id())

    left_by(parent())
    assert seen == ["training"]


def test_a_peak_that_grew_later_is_published_again(
    left_by: Read, placed: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_step, "_PEAK_GROWTH_RATIO", PEAK_GROWTH_RATIO)
    directory = placed()

    @xonar_task(window=SHORT)
    def checkpoint() -> None:
        list(steps(range(12)))
        until(lambda: published(directory) == 1)
        before = peak_of(directory)
        ballast = bytearray(b"x") * (512 * 1024 * 1024)
        until(lambda: peak_of(directory) > before + 200)
        assert len(ballast) > 0

    @flow
    def parent() -> UUID:
        checkpoint()
        return UUID(flow_run.get_id())

    peaks = sorted(data["profile"]["peak_memory_mib"] for data in left_by(parent()).data)
    assert len(peaks) == 2
    assert peaks[1] > peaks[0] + 200
    assert published(directory) == 2


def test_threads_end_with_the_training(left_by: Read) -> None:
    left_by(study())
    # Somebody else's training may have ended with the test before this one.
    until(lambda: not any(t.name == "xonar-profile" for t in threading.enumerate()))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("train", "train"),
        ("My Task_2", "my-task-2"),
        ("größer & <b>", "gr-er-b"),
        ("--", "x"),
    ],
)
def test_names_become_artifact_keys(name: str, key: str) -> None:
    assert slug(name) == key


@xonar_task(window=SHORT)
def train_in_two_phases(directory: str) -> None:
    """Go on with longer steps once the profile is there, until there is another one."""
    seconds = 0.001
    for _ in steps(range(20_000)):
        if published(RunDirectory(Path(directory))) == 1:
            seconds = 0.15  # longer than all that others may take of a short one
        if published(RunDirectory(Path(directory))) > 1:
            break
        until_s = time.thread_time() + seconds  # however busy the machine is
        while time.thread_time() < until_s:
            pass


@flow
def study_in_two_phases(directory: str) -> UUID:
    train_in_two_phases(directory)
    return UUID(flow_run.get_id())


def test_a_training_that_changes_is_published_again(
    left_by: Read, placed: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xonar_prefect.profiling.training._LEAST_BLOCK_SECONDS", 0.05)
    monkeypatch.setattr("xonar_prefect.profiling.change._LEAST_STEPS", 5)
    # Whoever else is busy on this machine: then it would not be published.
    monkeypatch.setattr(Measurement, "is_undisturbed", property(lambda _: True))
    directory = placed()
    left = left_by(study_in_two_phases(str(directory.path)))
    first, second = sorted(
        (profile_from_dict(data["profile"]) for data in left.data),
        key=lambda profile: profile.measured_at_s,
    )
    assert first.key == second.key
    assert active_seconds(second) > 2 * active_seconds(first)


def active_seconds(profile: Profile) -> float:
    assert profile.step_seconds is not None
    assert profile.active_fraction is not None
    return profile.active_fraction * profile.step_seconds
