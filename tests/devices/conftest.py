from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import nvml as fake_nvml
from tests.fakes.nvml import FakeNvml


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[FakeNvml]:
    """The fake library, loaded by the real pynvml, with no GPU in it yet."""
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler for the fake NVML")
    with fake_nvml.loaded(tmp_path) as fake:
        yield fake
