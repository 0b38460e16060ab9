"""What people say about devices, from one process to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from xonar_prefect.worker.orders import Order, Orders

DRAIN = Order(device="GPU-1", drained=True, at_s=100.0, reason="fan", by="ann", until_s=200.0)


def test_the_latest_word_about_each_device_counts(tmp_path: Path) -> None:
    orders = Orders(tmp_path, "box")
    assert orders.read() == {}
    orders.give(DRAIN)
    other = Order(device="MIG-GPU-2/1/0", drained=True, at_s=1.0)  # an old name, with slashes
    orders.give(other)
    released = Order(device="GPU-1", drained=False, at_s=150.0)
    orders.give(released)
    assert Orders(tmp_path, "box").read() == {"GPU-1": released, "MIG-GPU-2/1/0": other}


def test_hosts_that_share_a_home_do_not_share_their_cores(tmp_path: Path) -> None:
    Orders(tmp_path, "box").give(DRAIN)
    assert Orders(tmp_path, "other").read() == {}


def test_a_drain_counts_until_its_end(tmp_path: Path) -> None:
    assert DRAIN.drains_at(199.9)
    assert not DRAIN.drains_at(200.0)
    assert Order(device="GPU-1", drained=True, at_s=0.0).drains_at(1e12)
    assert not Order(device="GPU-1", drained=False, at_s=0.0).drains_at(1.0)


@pytest.mark.parametrize("text", ["", "[1]", '{"device": "GPU-2"}', "{"])
def test_a_file_that_is_no_order_is_said_and_ignored(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    orders = Orders(tmp_path, "box")
    orders.give(DRAIN)
    (tmp_path / "devices" / "box" / "wrong.json").write_text(text)
    assert orders.read() == {"GPU-1": DRAIN}
    assert "wrong.json cannot be read" in caplog.text


def test_a_field_of_a_newer_version_is_ignored(tmp_path: Path) -> None:
    orders = Orders(tmp_path, "box")
    orders.give(DRAIN)
    file = tmp_path / "devices" / "box" / "GPU-1.json"
    file.write_text(file.read_text().replace("{", '{"ticket": 7, ', 1))
    assert orders.read() == {"GPU-1": DRAIN}


def test_a_reason_reads_as_a_part_of_a_sentence() -> None:
    order = Order(device="GPU-1", drained=True, at_s=0.0, reason=" Fan is broken. ", by="ann")
    assert order.as_reason() == "drained by ann: Fan is broken"
