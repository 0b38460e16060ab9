from __future__ import annotations

from tests.core.building import training
from xonar_prefect.cli.simulate.explanation import Explanation
from xonar_prefect.core.decisions import Hold, ReasonCode, Refuse, Release
from xonar_prefect.core.models import Snapshot

WHO = training("a")
DECISIONS = (
    Hold(WHO, ReasonCode.NO_FREE_SLOT, "GPU 0 has 2 of 2 trainings."),
    Hold(WHO, ReasonCode.NO_FREE_SLOT, "GPU 1 has 2 of 2 trainings."),
    Hold(WHO, ReasonCode.NO_FREE_SLOT, "GPU 1 has 2 of 2 trainings."),
    Hold(WHO, ReasonCode.BETTER_ALONE, "It is better off alone."),
    Hold(WHO, ReasonCode.NO_FREE_SLOT, "GPU 1 has 2 of 2 trainings."),
    Release(training=WHO, devices=("g0",), code=ReasonCode.FIRST_ON_DEVICE, reason="It is free."),
    Release(training=WHO, devices=("g0",), code=ReasonCode.FIRST_ON_DEVICE, reason="It is free."),
    Hold(WHO, ReasonCode.BETTER_ALONE, "It is better off alone."),
    Refuse(training=WHO, code=ReasonCode.NEVER_FITS, reason="It fits nowhere."),
)


def told(explanation: Explanation) -> list[str]:
    take = explanation.watch("q0", "serial")
    assert take is not None
    for second, decision in enumerate(DECISIONS):
        take(Snapshot(now_s=float(second), held=(WHO,), devices=()), (decision,))
    return [line.split()[0] for line in explanation.lines("serial")]


def test_every_new_sentence_is_taken_down() -> None:
    assert told(Explanation("q0")) == ["0.0", "1.0", "3.0", "4.0", "5.0", "6.0", "7.0", "8.0"]


def test_a_hold_may_be_taken_down_only_when_its_code_is_new_since_the_release() -> None:
    explanation = Explanation("q0", every_hold=False)
    assert told(explanation) == ["0.0", "3.0", "5.0", "6.0", "7.0", "8.0"]


def test_another_queue_is_not_watched() -> None:
    assert Explanation("q0").watch("q1", "serial") is None
