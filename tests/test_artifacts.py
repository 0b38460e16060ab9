from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from xonar_prefect.artifacts import (
    confidence,
    decision_markdown,
    escape,
    meaning,
    mebibytes,
    missing_profile_card,
    percent,
    profile_card,
    seconds,
)
from xonar_prefect.core.decisions import (
    Alternative,
    Hold,
    ReasonCode,
    Refuse,
    Release,
)
from xonar_prefect.core.models import Profile, Training

PROFILE = Profile(
    key="0123456789abcdef",
    device_model="cpu-core",
    active_fraction=0.62,
    communication_fraction=0.2,
    input_fraction=0.1,
    other_fraction=0.08,
    step_seconds=0.0213,
    step_seconds_interval=(0.0208, 0.0218),
    active_fraction_interval=(0.59, 0.65),
    peak_memory_mib=6234,
    memory_source="rss",
    steps=14,
    source="cpu-time",
    framework="tensorflow 2.21.0",
    device="cpu-1",
)
NASTY = '<script>alert(1)</script> | [x](javascript:y) `z` "q"'


def pictures(markdown: str) -> list[str]:
    return [
        base64.b64decode(data).decode()
        for data in re.findall(r"\(data:image/svg\+xml;base64,([^)]*)\)", markdown)
    ]


def card(profile: Profile = PROFILE, training: str = "train") -> str:
    return profile_card(training, profile, measured_step_seconds=0.0213).markdown


def test_the_card_is_a_picture_a_table_and_a_meaning() -> None:
    text = card()
    assert len(pictures(text)) == 1
    assert "| Active fraction | 62 % | 59 % to 65 % |" in text
    assert "| Time of a step | 21.3 ms | 20.8 ms to 21.8 ms |" in text
    assert "6\u202f234 MiB" in text
    assert text.endswith("62 % active: pairs well with trainings below 40 %.")


def test_the_description_is_one_short_sentence_with_the_figures() -> None:
    description = profile_card("train", PROFILE, measured_step_seconds=0.02).description
    assert description == ("62 % active, 21.3 ms a step, 6\u202f234 MiB peak (14 steps).")


def test_the_picture_stands_on_a_ground_of_its_own_and_fits_the_page() -> None:
    (picture,) = pictures(card())
    root = ElementTree.fromstring(picture)  # noqa: S314
    ground = root[0]
    assert int(root.attrib["width"]) <= 680
    assert (ground.tag.rpartition("}")[2], ground.attrib["fill"]) == ("rect", "#ffffff")
    assert ground.attrib["width"] == root.attrib["width"]
    assert len(picture) < 5000


def test_the_bar_shows_every_share() -> None:
    (picture,) = pictures(card())
    for label in ("active 62 %", "communication 20 %", "input 10 %", "other idle 8 %"):
        assert label in picture
    widths = [float(w) for w in re.findall(r'y="52.0" width="([\d.]+)"', picture)]
    whole, *shares = widths
    assert sum(shares) == pytest.approx(whole, abs=0.5)


def test_without_a_trace_the_rest_of_the_bar_is_idle() -> None:
    profile = replace(
        PROFILE, communication_fraction=None, input_fraction=None, other_fraction=None
    )
    (picture,) = pictures(card(profile))
    assert ">idle 38 %" in picture
    assert "| Communication | - |" in card(profile)


def test_unknown_is_a_dash() -> None:
    text = card(Profile(key="k", device_model="none"))
    assert "| Active fraction | - | - |" in text
    assert "| Time of a step | - | - |" in text
    assert "| Peak memory | - |" in text
    assert "active fraction unknown" in pictures(text)[0]
    assert "None" not in text


def test_a_joint_profile_says_what_is_not_known_yet() -> None:
    profile = Profile(key="k", device_model="m", peak_memory_mib=5, steps=10, joint=True)
    text = profile_card("train", profile, measured_step_seconds=0.5).markdown
    assert "beside a partner, where a step took 500 ms" in text


def test_a_missing_profile_says_what_to_do() -> None:
    text = missing_profile_card("train", "This training took no step: use steps(...).")
    assert "took no step: use steps(...)." in text.markdown
    assert text.description == "No profile: This training took no step: use steps(...)."


@pytest.mark.parametrize(
    ("active", "words"),
    [
        (0.0, "any training that fits"),
        (0.25, "any training that fits"),
        (0.5, "below 50 %"),
        (1.0, "below 25 %"),
        (None, "not known"),
    ],
)
def test_the_meaning_follows_from_the_slowdown(active: float | None, words: str) -> None:
    assert words in meaning(Profile(key="k", device_model="m", active_fraction=active))


# Names from users


def test_names_cannot_become_markup_in_markdown() -> None:
    text = re.sub(r"data:[^)]*", "", card(training=NASTY))
    assert not re.search(r"(?<!\\)<", text)
    assert not re.search(r"(?<!\\)\[x", text)
    assert not re.search(r"(?<!\\)`z", text)


def test_names_cannot_become_markup_in_the_picture() -> None:
    (picture,) = pictures(card(training=NASTY))
    root = ElementTree.fromstring(picture)  # noqa: S314
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {"svg", "rect", "text"}


def test_names_cannot_break_a_table() -> None:
    assert escape("a|b\nc") == "a\\|b c"


def test_long_names_are_cut_in_the_picture() -> None:
    (picture,) = pictures(card(training="x" * 500))
    assert "x" * 61 not in picture
    assert "\u2026" in picture


# Decisions

TRAINING = Training(run_id="r-1", name="night <b>", submitted_at_s=1.0)
ALTERNATIVE = Alternative(
    candidate="other | one",
    device="cpu-0",
    code=ReasonCode.BETTER_PARTNER_CHOSEN,
    reason="1.31 is more than 1.12.",
    predicted_slowdown=1.31,
)


def test_a_release_shows_reason_partners_and_what_was_weighed() -> None:
    text = decision_markdown(
        Release(
            training=TRAINING,
            devices=("cpu-1",),
            code=ReasonCode.COMPLEMENTS_PARTNER,
            reason="1 + 0.62 x 0.2 = 1.12.",
            request_mib=700,
            partners=("r-2",),
            predicted_slowdown=1.124,
            alternatives=(ALTERNATIVE,),
        )
    )
    assert "was released to cpu-1" in text
    assert "1 + 0.62 x 0.2 = 1.12." in text
    assert "`COMPLEMENTS_PARTNER`" in text
    assert "| Predicted slowdown | 1.12 |" in text
    assert "| other \\| one | cpu-0 | 1.31 | `BETTER_PARTNER_CHOSEN` | 1.31 is more" in text


def test_a_hold_shows_its_reason() -> None:
    text = decision_markdown(
        Hold(training=TRAINING, code=ReasonCode.NO_FREE_SLOT, reason="Both slots are taken.")
    )
    assert text.startswith("# night \\<b\\> is held")
    assert "Both slots are taken." in text
    assert "weighed" not in text


def test_a_refusal_shows_its_reason() -> None:
    text = decision_markdown(
        Refuse(training=TRAINING, code=ReasonCode.NEVER_FITS, reason="90 > 40 MiB.")
    )
    assert "was refused" in text
    assert "`NEVER_FITS`" in text


def test_a_release_with_unknown_figures_shows_dashes() -> None:
    text = decision_markdown(
        Release(
            training=TRAINING,
            devices=(),
            code=ReasonCode.NEEDS_NO_DEVICE,
            reason="It asked for no device.",
        )
    )
    assert "released to no device" in text
    assert "| Memory reserved on each device | - |" in text
    assert "| Partners | none |" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0001234, "0.123 ms"), (0.0213, "21.3 ms"), (1.0, "1 s"), (250.4, "250 s")],
)
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_fractions_and_memory() -> None:
    assert (percent(0.125), percent(None)) == ("12 %", "-")
    assert (mebibytes(12345), mebibytes(None)) == ("12\u202f345 MiB", "-")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "high, active \u00b13 % (95 %) over 14 steps"),
        ({"active_fraction_interval": (0.54, 0.70)}, "medium, active \u00b18 %"),
        ({"active_fraction_interval": (0.42, 0.82)}, "low, active \u00b120 %"),
        ({"steps": 9}, "medium"),
        ({"steps": 1, "active_fraction_interval": None}, "low, with 1 step measured"),
        ({"steps": 0}, "low. No step was measured"),
        ({"active_fraction": None}, "none"),
    ],
)
def test_the_card_says_how_far_it_can_be_trusted(changes: dict[str, Any], words: str) -> None:
    profile = replace(PROFILE, **changes)
    assert confidence(profile).startswith(f"Confidence: {words}")
    assert confidence(profile) in card(profile)
