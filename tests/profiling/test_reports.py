from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from xonar_prefect.core.models import Profile
from xonar_prefect.profiling import reports
from xonar_prefect.profiling.contention import Contention
from xonar_prefect.profiling.reports import Report, merge, own_rank, read_reports

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
    contention: Contention | None = None,
    **changes: object,
) -> Report:
    profile = replace(ONE, **changes)  # type: ignore[arg-type]
    return Report(
        pid=pid,
        rank=rank,
        on_gpu=on_gpu,
        profile=profile,
        raw_active_fraction=profile.active_fraction,
        contention=contention,
    )


def test_one_process_is_what_it_reports() -> None:
    assert merge([report()]) == ONE


def test_without_a_step_there_is_nothing_to_report() -> None:
    assert merge([]) is None
    assert merge([report(steps=0)]) is None


def test_processes_without_steps_do_not_count() -> None:
    assert merge([report(1, steps=0, active_fraction=0.9), report(2)]) == ONE


def test_processor_time_and_memory_of_workers_add_up() -> None:
    merged = merge([report(1), report(2)])
    assert merged is not None
    assert merged.active_fraction == pytest.approx(0.6)
    assert merged.active_fraction_interval == pytest.approx((0.6 - 0.0424, 0.6 + 0.0424), abs=1e-3)
    assert merged.peak_memory_mib == 1000


def test_the_idle_time_that_is_left_keeps_its_proportions() -> None:
    merged = merge([report(1), report(2)])
    assert merged is not None
    shares = (merged.communication_fraction, merged.input_fraction, merged.other_fraction)
    assert shares == pytest.approx((0.4 * 0.4 / 0.7, 0.4 * 0.1 / 0.7, 0.4 * 0.2 / 0.7))


def test_what_workers_take_from_each_other_is_not_put_down_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "processor_cores", lambda: 1)
    alone = Contention(elapsed_s=10.0, own_seconds=3.0, waited_seconds=2.0, busy_seconds=6.0)
    merged = merge([report(1, contention=alone), report(2, contention=alone)])
    assert merged is not None
    assert merged.active_fraction == pytest.approx(0.6)
    disturbed = alone._replace(busy_seconds=10.0)  # 4 of 10 s are nobody's of them
    merged = merge([report(1, contention=disturbed), report(2, contention=disturbed)])
    assert merged is not None
    assert merged.active_fraction == pytest.approx(0.6 / (1 - 0.4))


def test_workers_are_never_more_than_fully_active() -> None:
    merged = merge([report(pid, active_fraction=0.7) for pid in range(3)])
    assert merged is not None
    assert merged.active_fraction == 1.0
    assert merged.other_fraction == pytest.approx(0.0)


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
        [report(1), report(2, active_fraction=None, peak_memory_mib=None, other_fraction=None)]
    )
    assert merged is not None
    assert merged.active_fraction is merged.active_fraction_interval is None
    assert merged.peak_memory_mib is None
    assert merged.communication_fraction is None


def test_reports_are_read_as_they_were_written_the_chief_first(tmp_path: Path) -> None:
    written = [
        report(1, contention=Contention(1.0, 0.5, 0.1, 0.9)),
        report(2, rank=1),
        report(3, rank=0),
    ]
    for each in written:
        each.write(tmp_path)
        each.write(tmp_path)
    assert read_reports(tmp_path) == [written[2], written[1], written[0]]


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
        ({"TF_CONFIG": '{"task": {"type": "worker", "index": 1}}'}, 1),
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
