from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from tests.benchmarks.demo_replay import replay

RECORD = Path(__file__).with_name("recorded_demo.json")


@pytest.fixture(scope="module")
def arms() -> list[tuple[str, float, float]]:
    """Nine real queues on two processor cores (three repeats), measured and simulated."""
    return replay(json.loads(RECORD.read_text(encoding="utf-8")))


@pytest.mark.parametrize("arm", ["ours", "parallel", "serial"])
def test_a_real_queue_is_simulated_within_ten_per_cent(
    arms: list[tuple[str, float, float]], arm: str
) -> None:
    measured = fmean(real for name, real, _ in arms if name.startswith(arm))
    simulated = fmean(average for name, _, average in arms if name.startswith(arm))
    assert simulated == pytest.approx(measured, rel=0.10)
