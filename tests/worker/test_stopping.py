"""The bounds of an end that is asked for."""

from __future__ import annotations

from xonar_prefect.settings import XonarSettings
from xonar_prefect.worker import stopping


def test_by_default_a_cancelled_training_is_gone_within_ten_seconds() -> None:
    defaults = XonarSettings.model_fields
    watch_s, grace_s = defaults["watch_seconds"].default, defaults["stop_grace_seconds"].default
    # Its state is read, its processes are killed, and the next look finds nobody.
    noticed_s = stopping._STATES_EVERY_SECONDS + watch_s
    assert noticed_s + grace_s + watch_s < 10
