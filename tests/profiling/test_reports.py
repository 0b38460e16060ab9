from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from xonar_prefect.core.models import Profile
from xonar_prefect.profiling.reports import (
    Report,
    merge,
    own_rank,
    progress_directory,
    progress_of,
    read_reports,
    read_statuses,
)
from xonar_prefect.run_directory import Status

ONE = Profile(
    key="command",
    device_model="cpu",
    active_fraction=0.3,
    active_fraction_interval=(0.27, 0.33),
    communication_fraction=0.4,
    input_fraction=0.1,
    other_fraction=0.2,
    step_seconds=0.1,
    step_seconds_interval=(0.09, 0.11),
    peak_memory_mib=500,
    memory_source="rss",
    steps=20,
    source="cpu-time",
    framework="torch 2",
    device="2 processor cores",
)


def report(
    pid: int = 1,
    *,
    rank: int | None = None,
    on_gpu: bool = False,
    descendants: tuple[int, ...] = (),
    settled: bool = False,
    **changes: object,
) -> Report:
    profile = replace(ONE, **changes)  # type: ignore[arg-type]
    return Report(
        pid=pid,
        rank=rank,
        on_gpu=on_gpu,
        profile=profile,
        descendants=descendants,
        settled=settled,
    )


def test_one_process_is_what_it_reports() -> None:
    assert merge([report()]) == ONE


def test_without_a_step_there_is_nothing_to_report() -> None:
    assert merge([]) is None
    assert merge([report(steps=0)]) is None


def test_processes_without_steps_do_not_count() -> None:
    assert merge([report(1, steps=0, active_fraction=0.9), report(2)]) == ONE


def test_on_the_processor_the_chiefs_account_has_the_others_in_it() -> None:
    merged = merge([report(1), report(2, active_fraction=0.4)])
    assert merged is not None
    assert merged.active_fraction == ONE.active_fraction
    assert merged.active_fraction_interval == ONE.active_fraction_interval


def test_memory_of_workers_adds_up() -> None:
    merged = merge([report(1), report(2)])
    assert merged is not None
    assert merged.peak_memory_mib == 1000


def test_memory_of_a_worker_that_another_one_started_is_in_the_memory_of_that() -> None:
    merged = merge([report(1, descendants=(2, 9), peak_memory_mib=1200), report(2)])
    assert merged is not None
    assert merged.peak_memory_mib == 1200


def test_idle_time_is_shared_as_the_workers_say_on_average() -> None:
    merged = merge([report(1), report(2, communication_fraction=0.1, other_fraction=0.5)])
    assert merged is not None
    shares = (merged.communication_fraction, merged.input_fraction, merged.other_fraction)
    assert shares == pytest.approx((0.25, 0.1, 0.35))


def test_a_gang_on_gpus_is_as_busy_as_its_busiest_and_as_full_as_its_fullest() -> None:
    merged = merge(
        [
            report(1, on_gpu=True, peak_memory_mib=900),
            report(2, on_gpu=True, active_fraction=0.5),
        ]
    )
    assert merged is not None
    assert (merged.active_fraction, merged.peak_memory_mib) == (0.5, 900)


def test_a_gang_is_as_slow_as_its_slowest() -> None:
    merged = merge([report(1), report(2, step_seconds=0.2, step_seconds_interval=(0.1, 0.3))])
    assert merged is not None
    assert (merged.step_seconds, merged.step_seconds_interval) == (0.2, (0.1, 0.3))


def test_what_one_worker_does_not_know_is_unknown_for_all() -> None:
    merged = merge(
        [
            report(1, active_fraction=None, active_fraction_interval=None),
            report(2, peak_memory_mib=None, other_fraction=None),
        ]
    )
    assert merged is not None
    assert merged.active_fraction is merged.active_fraction_interval is None
    assert merged.peak_memory_mib is None
    assert merged.communication_fraction is None


def test_reports_are_read_as_they_were_written_the_chief_first(tmp_path: Path) -> None:
    written = [
        report(1, descendants=(4, 5), settled=True),
        report(2, rank=1),
        report(3, rank=0),
    ]
    for each in written:
        each.write(tmp_path)
        each.write(tmp_path)
    assert read_reports(tmp_path) == [written[2], written[1], written[0]]


def test_where_the_directory_is_gone_there_are_no_reports(tmp_path: Path) -> None:
    assert read_reports(tmp_path / "gone") == []


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pid": 4}', '{"pid": 4, "profile": {}}'])
def test_a_report_that_is_damaged_or_cut_off_is_left_out(tmp_path: Path, damage: str) -> None:
    report(1).write(tmp_path)
    (tmp_path / "4.profile.json").write_text(damage)
    assert [each.pid for each in read_reports(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"RANK": "3"}, 3),
        ({"SLURM_PROCID": "2"}, 2),
        ({"TF_CONFIG": '{"task": {"type": "chief", "index": 0}}'}, 0),
        ({"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'}, 1),
        ({"TF_CONFIG": "nonsense"}, None),
        ({"RANK": "first"}, None),
        ({}, None),
    ],
)
def test_the_rank_is_what_the_launcher_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], rank: int | None
) -> None:
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert own_rank() == rank


def status(steps: int, *, began_s: float, ended_s: float, total: int | None = None) -> Status:
    return Status(
        steps_done=steps,
        steps_total=total,
        stepping_seconds=ended_s - began_s,
        last_step_at_s=ended_s,
    )


def test_workers_of_one_training_have_got_as_far_as_the_furthest() -> None:
    workers = [
        status(20, began_s=0.0, ended_s=10.0, total=40),
        status(19, began_s=0.5, ended_s=9.0, total=40),
    ]
    progress, total = progress_of(workers)
    assert (progress.steps_done, progress.stepping_seconds, total) == (20, 10.0, 40)
    assert progress.last_step_at_s == 10.0


def test_trainings_that_follow_one_another_add_up() -> None:
    later = status(5, began_s=12.0, ended_s=14.0, total=10)
    progress, total = progress_of([later, status(20, began_s=0.0, ended_s=10.0, total=20)])
    assert (progress.steps_done, progress.stepping_seconds, total) == (25, 12.0, 30)


def test_without_a_step_there_is_no_progress() -> None:
    progress, total = progress_of([])
    assert (progress.steps_done, total) == (0, None)


def test_only_who_took_a_step_is_read(tmp_path: Path) -> None:
    assert read_statuses(tmp_path) == []
    own = progress_directory(tmp_path)
    assert own is not None
    own.write(Status())
    assert read_statuses(tmp_path) == []
    own.write(status(3, began_s=0.0, ended_s=1.0))
    assert [each.steps_done for each in read_statuses(tmp_path)] == [3]


def test_where_nothing_can_be_written_nobody_reports_progress(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text("in the way")
    assert progress_directory(tmp_path) is None
    assert read_statuses(tmp_path) == []
