from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from xonar_prefect.profiling import frameworks
from xonar_prefect.profiling.framework import Framework, Tracer


class FakeFramework:
    """A framework as a training has it."""

    def __init__(
        self,
        name: str | None,
        *,
        used: bool = False,
        gpu: str | None = None,
        peak_mib: int | None = None,
    ) -> None:
        self._name = name
        self._used = used
        self._gpu = gpu
        self._peak_mib = peak_mib
        self.limit_mib: int | None = None

    def version(self) -> str | None:
        return self._name

    def is_used(self) -> bool:
        return self._used

    def gpu_model(self) -> str | None:
        return self._gpu

    def peak_memory_mib(self) -> int | None:
        return self._peak_mib

    @contextlib.contextmanager
    def limited_memory(self, limit_mib: int) -> Iterator[None]:
        self.limit_mib = limit_mib
        yield
        self.limit_mib = None

    def tracer(self) -> Tracer:
        return frameworks.NoTracer()


ABSENT = FakeFramework(None)


def test_what_is_used_wins_over_what_is_only_imported() -> None:
    known = (FakeFramework("torch 2"), FakeFramework("tensorflow 2", used=True), ABSENT)
    assert frameworks.version(known) == "tensorflow 2"


def test_what_is_imported_is_told_where_nothing_is_used_yet() -> None:
    assert frameworks.version((ABSENT, FakeFramework("jax 1"))) == "jax 1"


def test_without_a_framework_nothing_is_told_and_nothing_is_traced() -> None:
    assert frameworks.version((ABSENT,)) is None
    tracer = frameworks.tracer((ABSENT,))
    assert tracer.start() is None
    assert tracer.stop() == ()


def test_the_gpu_is_that_of_a_framework_that_is_used() -> None:
    idle = FakeFramework("torch 2", gpu="H200")
    assert frameworks.gpu_model((idle, FakeFramework("jax 1", used=True))) is None
    assert frameworks.gpu_model((FakeFramework("torch 2", used=True, gpu="H200"),)) == "H200"


def test_the_highest_peak_counts_and_unknown_ones_do_not() -> None:
    known = (ABSENT, FakeFramework("a", peak_mib=700), FakeFramework("b", peak_mib=900))
    assert frameworks.peak_memory_mib(known) == 900
    assert frameworks.peak_memory_mib((ABSENT,)) is None


def test_every_framework_is_capped_while_the_body_runs() -> None:
    known = (FakeFramework("a"), FakeFramework("b"))
    with frameworks.limited_memory(500, known):
        assert [each.limit_mib for each in known] == [500, 500]
    assert [each.limit_mib for each in known] == [None, None]


@pytest.mark.parametrize("framework", frameworks.KNOWN)
def test_a_framework_that_is_not_imported_tells_nothing(
    framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [
        name for name in sys.modules if name.split(".")[0] in ("torch", "tensorflow", "jax")
    ]:
        monkeypatch.delitem(sys.modules, name)
    assert framework.version() is None
    assert framework.gpu_model() is None
    assert framework.peak_memory_mib() is None
    assert framework.tracer().stop() == ()
