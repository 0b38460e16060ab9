"""What every source of devices promises, as plain functions: they also run without pytest.

`tests/contracts/test_accelerators.py` runs them on the fakes, `tests/gpu/check.py` on a real GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from xonar_prefect.devices.base import Accelerators
from xonar_prefect.errors import UnknownDeviceError

GONE_PROCESS = 2**22 + 1  # beyond the largest process id of Linux


def ids_are_unique_and_the_same_at_every_read(accelerators: Accelerators) -> None:
    first = [reading.id for reading in accelerators.read({})]
    again = [reading.id for reading in accelerators.read({})]
    assert first, "there is no device to check"
    assert len(set(first)) == len(first), first
    assert first == again, (first, again)


def readings_are_ordered_by_index(accelerators: Accelerators) -> None:
    indices = [reading.index for reading in accelerators.read({})]
    assert indices == sorted(indices), indices
    assert len(set(indices)) == len(indices), indices


def models_do_not_change(accelerators: Accelerators) -> None:
    first = [reading.model for reading in accelerators.read({})]
    assert all(first), first
    assert first == [reading.model for reading in accelerators.read({})]


def an_available_device_has_memory(accelerators: Accelerators) -> None:
    for reading in accelerators.read({}):
        assert reading.unavailable is not None or reading.memory_mib > 0, reading


def memory_is_whole_and_not_negative(accelerators: Accelerators) -> None:
    for reading in accelerators.read({}):
        for amount in (
            reading.memory_mib,
            reading.reserved_mib,
            reading.used_mib,
            *reading.used_by_pid.values(),
        ):
            assert isinstance(amount, int), reading
            assert amount >= 0, reading


def used_memory_covers_what_is_attributed(accelerators: Accelerators) -> None:
    for reading in accelerators.read({}):
        assert reading.used_mib >= sum(reading.used_by_pid.values()), reading


def a_process_that_is_gone_is_no_error_and_uses_nothing(accelerators: Accelerators) -> None:
    ids = [reading.id for reading in accelerators.read({})]
    for reading in accelerators.read({device_id: [GONE_PROCESS] for device_id in ids}):
        assert GONE_PROCESS not in reading.used_by_pid, reading


def processes_on_a_device_that_is_not_ours_are_no_error(accelerators: Accelerators) -> None:
    ids = [reading.id for reading in accelerators.read({})]
    assert ids == [reading.id for reading in accelerators.read({"elsewhere": [1]})]


def a_process_is_confined_to_exactly_its_devices(accelerators: Accelerators) -> None:
    ids = [reading.id for reading in accelerators.read({})]
    for chosen in ([ids[0]], [ids[-1]], ids):
        visible = accelerators.environment(chosen, None)["CUDA_VISIBLE_DEVICES"]
        if accelerators.kind == "cpu":
            cores = accelerators.processors(chosen)
            assert visible == "", visible
            assert cores is not None, chosen
            assert len(cores) == len(chosen), (cores, chosen)
        else:
            assert visible.split(",") == chosen, (visible, chosen)


def different_devices_have_different_processors_if_any(accelerators: Accelerators) -> None:
    taken: set[int] = set()
    for reading in accelerators.read({}):
        cores = set(accelerators.processors([reading.id]) or ())
        assert not taken & cores, (reading, taken)
        taken |= cores


def a_run_without_devices_sees_none(accelerators: Accelerators) -> None:
    assert accelerators.environment([], None)["CUDA_VISIBLE_DEVICES"] == ""
    assert accelerators.processors([]) is None


def the_environment_is_made_of_texts(accelerators: Accelerators) -> None:
    first = accelerators.read({})[0]
    for name, value in accelerators.environment([first.id], first.memory_mib // 2).items():
        assert isinstance(value, str), (name, value)
        assert name.isidentifier(), name


def a_memory_limit_adds_to_the_environment_and_takes_nothing_away(
    accelerators: Accelerators,
) -> None:
    first = accelerators.read({})[0]
    without = accelerators.environment([first.id], None)
    within = accelerators.environment([first.id], max(1, first.memory_mib // 2))
    assert without.items() <= within.items(), (without, within)


def an_unknown_device_is_refused_by_name(accelerators: Accelerators) -> None:
    known = accelerators.read({})[0].id
    for ask in (lambda ids: accelerators.environment(ids, None), accelerators.processors):
        refusal = _refusal_of(ask, [known, "no-such-device"])
        assert "no-such-device" in refusal, refusal
        assert known in refusal, refusal


def _refusal_of(ask: Callable[[list[str]], object], device_ids: list[str]) -> str:
    try:
        ask(device_ids)
    except UnknownDeviceError as error:
        return str(error)
    raise AssertionError(f"accepted: {device_ids}")


def closing_twice_is_harmless_and_reading_opens_again(accelerators: Accelerators) -> None:
    before = [reading.id for reading in accelerators.read({})]
    accelerators.close()
    accelerators.close()
    assert before == [reading.id for reading in accelerators.read({})]


PROMISES: tuple[Callable[[Accelerators], None], ...] = (
    ids_are_unique_and_the_same_at_every_read,
    readings_are_ordered_by_index,
    models_do_not_change,
    an_available_device_has_memory,
    memory_is_whole_and_not_negative,
    used_memory_covers_what_is_attributed,
    a_process_that_is_gone_is_no_error_and_uses_nothing,
    processes_on_a_device_that_is_not_ours_are_no_error,
    a_process_is_confined_to_exactly_its_devices,
    different_devices_have_different_processors_if_any,
    a_run_without_devices_sees_none,
    the_environment_is_made_of_texts,
    a_memory_limit_adds_to_the_environment_and_takes_nothing_away,
    an_unknown_device_is_refused_by_name,
    closing_twice_is_harmless_and_reading_opens_again,
)
