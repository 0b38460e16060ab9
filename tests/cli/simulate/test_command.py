from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Xonar
from tests.cli.simulate.conftest import Files
from xonar_prefect.cli.simulate import performance
from xonar_prefect.core.policies import POLICIES
from xonar_prefect.files.colocation import COLUMNS

COLOCATION = (
    ",".join(COLUMNS)
    + """
V100,half,half,0.5,0.5,0
V100,half,busy,,,1
V100,busy,busy,0.5,0.5,0
"""
)


def test_the_figures_of_a_trace_are_those_worked_out_by_hand(
    xonar: Xonar, arguments: list[str]
) -> None:
    found = xonar(*arguments, "--policy", "serial", "--json").json["policies"]

    serial, parallel = found["serial"], found["parallel"]
    assert serial["average_jct_s"] == pytest.approx((100 + 200 + 250) / 3)
    assert serial["makespan_s"] == pytest.approx(250)
    assert serial["average_queueing_delay_s"] == pytest.approx((0 + 100 + 200) / 3)
    # the two halves share until 125 s; then busy is alone
    assert parallel["average_jct_s"] == pytest.approx((125 + 125 + 175) / 3)
    assert parallel["p95_jct_s"] == pytest.approx(175)
    assert parallel["out_of_memory"] == 0
    assert parallel["decisions"] >= 2
    assert parallel["seconds_per_decision"] > 0
    (queue,) = serial["queues"]
    assert queue["average_jct_s"] == serial["average_jct_s"]
    against = serial["against_parallel"]["average_jct_s"]
    assert against["mean"] == pytest.approx((550 - 425) / 425)
    assert against["low"] is None  # one queue tells nothing of chance


def test_a_table_compares_with_parallel(xonar: Xonar, arguments: list[str]) -> None:
    ended = xonar(*arguments, "--policy", "serial")
    assert ended.status == 0
    assert "Simulated on 1 GPU, one queue" in ended.words
    assert "serial 183.3 250.0 250.0 100.0" in ended.words
    assert "Against parallel" in ended.words
    assert "+29.4%" in ended.words
    assert "No time is counted for starting a training up" in ended.words


def test_all_policies_can_be_compared(xonar: Xonar, arguments: list[str]) -> None:
    found = xonar(*arguments, "--policy", "all", "--json").json
    assert set(found["policies"]) == set(POLICIES)


def test_several_policies_can_be_named_and_parallel_comes_with_them(
    xonar: Xonar, arguments: list[str]
) -> None:
    found = xonar(*arguments, "--policy", "serial", "--policy", "complementary", "--json").json
    assert set(found["policies"]) == {"serial", "complementary", "parallel"}


def test_start_up_time_is_counted_where_given(xonar: Xonar, arguments: list[str]) -> None:
    found = xonar(*arguments, "--policy", "serial", "--startup", "10", "--json").json
    assert found["policies"]["serial"]["makespan_s"] == pytest.approx(280)
    assert found["startup_s"] == 10
    assert not any("starting a training up" in note for note in found["notes"])


def test_every_experiment_of_a_trace_is_reported(
    xonar: Xonar, arguments: list[str], files: Files
) -> None:
    files.write(
        "trace.csv",
        "queue,submit_s,training,solo_duration_s,gpus\n"
        + "".join(f"q{number},0,half,{100 + number},1\n" * 2 for number in range(3)),
    )
    found = xonar(*arguments, "--policy", "serial", "--json").json
    queues = found["policies"]["serial"]["queues"]
    assert [each["queue"] for each in queues] == ["q0", "q1", "q2"]
    assert [each["makespan_s"] for each in queues] == pytest.approx([200, 202, 204])
    against = found["policies"]["serial"]["against_parallel"]["average_jct_s"]
    assert against["low"] < against["mean"] < against["high"]
    assert "mean of 3 queues" in xonar(*arguments, "--policy", "serial").words


class TestSampledQueues:
    @pytest.fixture
    def sampled(self, files: Files) -> list[str]:
        profiles = files("profiles.csv")
        return ["simulate", "--profiles", profiles, "--policy", "serial", "--json"]

    def test_are_ten_trainings_fifty_times_unless_said_otherwise(
        self, xonar: Xonar, sampled: list[str]
    ) -> None:
        found = xonar(*sampled).json
        assert (found["queues"], found["trainings"]) == (50, 500)
        found = xonar(*sampled, "--queue-size", "3", "--repeat", "4").json
        assert (found["queues"], found["trainings"]) == (4, 12)

    def test_are_the_same_for_the_same_seed(self, xonar: Xonar, sampled: list[str]) -> None:
        def average(*more: str) -> float:
            found = xonar(*sampled, "--repeat", "2", *more).json
            return found["policies"]["serial"]["average_jct_s"]

        assert average("--seed", "7") == average("--seed", "7") != average("--seed", "8")

    def test_may_be_equally_long(self, xonar: Xonar, sampled: list[str]) -> None:
        found = xonar(*sampled, "--durations", "equal", "--queue-size", "2", "--repeat", "3").json
        assert found["policies"]["serial"]["makespan_s"] == pytest.approx(1200)

    def test_may_be_drawn_from_some_trainings_only(self, xonar: Xonar, sampled: list[str]) -> None:
        found = xonar(*sampled, "--draw-from", "h*", "--repeat", "2", "--explain", "q0").json
        drawn = {
            each["training"].split()[0] for each in found["explanation"]["decisions"]["serial"]
        }
        assert drawn == {"half"}
        ended = xonar(*sampled, "--draw-from", "z*")
        assert (ended.status, "named like 'z*'" in ended.errors) == (2, True)


class TestMeasuredPairs:
    @pytest.fixture
    def measured(self, arguments: list[str], files: Files) -> list[str]:
        return [*arguments, "--colocation", files.write("pairs.csv", COLOCATION)]

    def test_pairs_are_as_measured_and_the_others_are_counted(
        self, xonar: Xonar, measured: list[str], files: Files
    ) -> None:
        files.write(
            "trace.csv",
            "submit_s,training,solo_duration_s,gpus\n"
            "0,half,100,1\n0,half,100,1\n1000,half,100,1\n1000,idle,100,1\n",
        )
        found = xonar(*measured, "--json").json
        assert (found["shared_pairs"], found["shared_pairs_measured"]) == (2, 1)
        assert any("Not measured together: 1 of 2 pairs" in note for note in found["notes"])
        parallel = found["policies"]["parallel"]
        assert parallel["average_jct_s"] == pytest.approx((200 + 200 + 105 + 105) / 4)

    def test_peaks_that_promise_too_much_run_out_of_memory(
        self, xonar: Xonar, measured: list[str], files: Files
    ) -> None:
        files.write(
            "trace.csv", "submit_s,training,solo_duration_s,gpus\n0,half,100,1\n0,busy,50,1\n"
        )
        found = xonar(*measured, "--policy", "parallel", "--json").json["policies"]["parallel"]
        assert found["out_of_memory"] >= 1
        assert found["completed"] == 2
        assert found["makespan_s"] == pytest.approx(150)

    def test_without_peaks_the_column_says_what_fits(
        self, xonar: Xonar, measured: list[str]
    ) -> None:
        unknown = [each for each in measured if each != "1:V100:16000"]
        unknown.remove("--gpus")
        found = xonar(*unknown, "--policy", "parallel", "--json").json
        assert found["policies"]["parallel"]["out_of_memory"] == 0
        assert any("the column out_of_memory says so" in note for note in found["notes"])

    def test_rows_without_effect_and_gains_are_counted(
        self, xonar: Xonar, measured: list[str], files: Files
    ) -> None:
        files.write(
            "pairs.csv",
            COLOCATION + "V100,idle,idle,,,0\nT4,half,busy,0.5,0.5,0\nV100,idle,half,1.1,0.9,0\n",
        )
        notes = xonar(*measured, "--json").json["notes"]
        assert (
            "Rows of pairs.csv without effect: 2 of 6, 1 without figures and 1 of a GPU model that "
            "is not simulated (T4)."
        ) in notes
        assert any("1 of 6 rows of pairs.csv, with a normalised thr" in note for note in notes)

    def test_nothing_is_said_of_rows_that_all_count(
        self, xonar: Xonar, measured: list[str]
    ) -> None:
        assert not any(
            "rows of" in note.lower() for note in xonar(*measured, "--json").json["notes"]
        )


def test_gpus_of_unknown_memory_are_told_from_trainings(
    xonar: Xonar, arguments: list[str], files: Files
) -> None:
    sized = "--gpus 1:V100:MEMORY_MIB, as `xonar gpus` shows it"
    unknown = [*arguments[:-1], "1:V100"]
    (of_gpu,) = [note for note in xonar(*unknown, "--json").json["notes"] if "memory" in note]
    assert "The memory of the GPUs is unknown" in of_gpu
    assert sized in of_gpu
    header = "training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib\n"
    files.write("profiles.csv", header + "half,V100,50,50,100,\nbusy,V100,100,0,100,4000\n")
    (of_kind,) = [note for note in xonar(*arguments, "--json").json["notes"] if "memory" in note]
    assert "The memory peak is unknown of 1 of 2 kinds (half)" in of_kind
    assert "these are taken to fit beside every other" in of_kind
    assert "in the column peak_memory_mib" in of_kind


def test_a_profile_on_another_model_only_is_no_unknown_peak(
    xonar: Xonar, arguments: list[str], files: Files
) -> None:
    header = "training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib\n"
    files.write("profiles.csv", header + "half,T4,50,50,100,4000\nbusy,V100,100,0,100,4000\n")
    notes = xonar(*arguments, "--json").json["notes"]
    assert (
        "There is no profile on V100 of 1 of 2 kinds (half): these are taken to fit beside every "
        "other. Give it in a row of V100."
    ) in notes
    assert not any("peak" in note for note in notes)


def test_a_mixed_pool_is_told_with_the_memory_that_is_known(
    xonar: Xonar, arguments: list[str], files: Files
) -> None:
    header = "training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib\n"
    rows = [
        f"{kind},{model},5,5,10,9" for kind in ("half", "busy") for model in ("V100", "CPU (a)")
    ]
    files.write("profiles.csv", header + "\n".join(rows))
    found = xonar(*arguments, "--gpus", "2:CPU (a)", "--json").json
    assert any(
        "Give it with --gpus 1:V100:16000 --gpus '2:CPU (a):MEMORY_MIB'" in note
        for note in found["notes"]
    )


def test_a_misspelt_column_is_named(xonar: Xonar, arguments: list[str], files: Files) -> None:
    files.write("trace.csv", "submit_s,training,solo_duration_s,gpus,prio\n0,half,100,1,2\n")
    ended = xonar(*arguments, "--json")
    assert ended.status == 0
    assert any("prio (did you mean priority?)" in note for note in ended.json["notes"])
    pairs = files.write("pairs.csv", ",".join(COLUMNS) + ",card\nV100,half,half,0.5,0.5,0,\n")
    ended = xonar(*arguments, "--colocation", pairs)
    assert "Columns of pairs.csv that are not read: card." in ended.words


def test_what_fits_nowhere_is_refused_and_said(
    xonar: Xonar, arguments: list[str], files: Files
) -> None:
    files.write("trace.csv", "submit_s,training,solo_duration_s,gpus\n0,half,100,1\n0,half,100,8\n")
    found = xonar(*arguments, "--json").json
    assert found["policies"]["parallel"]["refused"] == 1
    assert found["policies"]["parallel"]["average_jct_s"] == pytest.approx(100)
    assert any("fit nowhere, and in no figure: 1 of" in note for note in found["notes"])


def test_decisions_are_explained_in_the_words_of_the_policy(
    xonar: Xonar, arguments: list[str]
) -> None:
    ended = xonar(*arguments, "--policy", "serial", "--explain", "0")
    assert "Decisions under serial:" in ended.words
    assert "0.0 s released half #1: Released to GPU 0" in ended.words
    assert "[FIRST_ON_DEVICE]" in ended.words
    assert "held busy #3: GPU 0 has 1 of 1 trainings" in ended.words
    assert "A hold is shown when its kind of reason is new" in ended.words
    found = xonar(*arguments, "--explain", "0", "--json").json["explanation"]
    first = found["decisions"]["parallel"][0]
    assert (first["decision"], first["devices"]) == ("released", ["GPU-0000"])


def test_a_queue_that_is_not_there_cannot_be_explained(xonar: Xonar, arguments: list[str]) -> None:
    ended = xonar(*arguments, "--explain", "q7")
    assert ended.status == 2
    assert "There is no queue 'q7' to explain; there are '0'." in ended.errors


def test_a_drawing_shows_every_training(xonar: Xonar, arguments: list[str], tmp_path: Path) -> None:
    target = tmp_path / "queue.svg"
    assert xonar(*arguments, "--policy", "serial", "--plot", str(target)).status == 0
    drawing = ElementTree.fromstring(target.read_text())  # noqa: S314 - our own
    titles = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 6  # three trainings under two policies
    assert "busy #3: 200.0 s to 250.0 s, JCT 250.0 s" in titles


def test_a_drawing_that_cannot_be_written_is_named(
    xonar: Xonar, arguments: list[str], tmp_path: Path
) -> None:
    taken = tmp_path / "taken.svg"
    taken.mkdir()
    ended = xonar(*arguments, "--plot", str(taken))
    assert (ended.status, "Cannot write" in ended.errors) == (1, True)
    # What can be known is said before hours are spent on it.
    ended = xonar(*arguments, "--plot", str(tmp_path / "missing" / "queue.svg"))
    assert (ended.status, "is no directory" in ended.errors) == (2, True)
    ended = xonar(*arguments, "--plot", "queue.pdf")
    assert (ended.status, "writes SVG" in ended.errors) == (2, True)


def test_an_interrupted_simulation_shows_what_is_done(
    xonar: Xonar, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate, done = performance.simulate, []

    def interrupted(world, queue, policy, **options):
        if done:
            raise KeyboardInterrupt
        done.append(policy.name)
        return simulate(world, queue, policy, **options)

    monkeypatch.setattr(performance, "simulate", interrupted)
    ended = xonar(*arguments, "--policy", "serial", "--json")
    assert ended.status == 130
    assert "Interrupted when parallel had completed 0 of 3 trainings" in ended.errors
    found = json.loads(ended.output)
    assert found["policies"]["serial"]["makespan_s"] == pytest.approx(250)
    assert found["policies"]["parallel"]["queues"] == []
    assert "Interrupted" in found["interrupted"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["--gpus", "none"], "--gpus is 'none'; write it as COUNT[:MODEL[:MEMORY_MIB]]"),
        (["--gpus", "0"], "--gpus is '0'"),
        (["--gpus", "1:V100:lots"], "--gpus is '1:V100:lots'"),
        (["--gpus", "1:K80"], "No profile is of the GPU model 'K80'; the profiles are of V100"),
        (["--queue-size", "3"], "--trace and --queue-size exclude each other"),
        (["--from-pool", "gpu-box"], "--from-pool and --profiles exclude each other"),
        (["--startup", "-1"], "Must be >= 0"),
        (["--policy", "luck"], "There is no policy named 'luck'"),
        (["--remaining", "guess"], "--remaining"),
    ],
)
def test_a_wrong_option_is_named(
    xonar: Xonar, arguments: list[str], wrong: list[str], complaint: str
) -> None:
    ended = xonar(*arguments, *wrong)
    assert ended.status in {1, 2}
    assert complaint in " ".join(ended.errors.replace("│", " ").split())


def test_profiles_of_several_models_need_to_be_told_which(
    xonar: Xonar, arguments: list[str], files: Files
) -> None:
    files.write(
        "profiles.csv",
        "training,gpu_model,active_ms,idle_ms,step_ms,peak_memory_mib\n"
        "half,V100,50,50,100,\nbusy,V100,1,0,1,\nhalf,K80,200,200,400,\nbusy,K80,4,0,4,\n",
    )
    two = arguments[: arguments.index("--gpus")]
    ended = xonar(*two)
    assert (ended.status, "several GPU models (K80, V100)" in ended.errors) == (2, True)
    mixed = [*two, "--gpus", "1:V100", "--gpus", "1:K80", "--policy", "serial", "--json"]
    found = xonar(*mixed).json["policies"]["serial"]
    # the second half is four times slower on the K80 and ends at 400 s
    assert found["makespan_s"] == pytest.approx(400)


def test_nothing_to_simulate_from_is_said(xonar: Xonar) -> None:
    ended = xonar("simulate")
    assert ended.status == 2
    assert "--profiles" in ended.errors
    assert "--from-pool" in ended.errors


def test_a_wrong_row_is_named_with_file_line_and_column(
    xonar: Xonar, arguments: list[str], files: Files
) -> None:
    files.write("trace.csv", "submit_s,training,solo_duration_s,gpus\n0,half,-5,1\n")
    ended = xonar(*arguments)
    assert ended.status == 1
    assert ended.errors == (
        f"xonar: {files('trace.csv')}, line 2: column 'solo_duration_s' is '-5'; "
        "it must be zero or greater.\n"
    )


def test_help_has_an_example(xonar: Xonar) -> None:
    assert (
        "xonar simulate --profiles profiles.csv --trace trace.csv"
        in xonar("simulate", "--help").words
    )


def test_hosts_change_the_drawing_only(xonar: Xonar, arguments: list[str], files: Files) -> None:
    files.write("trace.csv", "submit_s,training,solo_duration_s,gpus\n0,half,100,2\n")
    two = [*arguments[:-1], "2:V100:16000", "--policy", "serial", "--json"]
    found = xonar(*two, "--gpus-per-host", "1").json["policies"]["serial"]
    assert found["makespan_s"] == pytest.approx(100)
