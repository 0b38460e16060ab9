from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.flows.conftest import FLOWS, RunPython

_START = (
    "import digits_distributed as flow\n"
    "with flow._second_worker(flow._cluster(), epochs=1, batch_size=64, filters=1, seed=0): pass\n"
)


def _tensorflow_that(directory: Path, does: str) -> Path:
    directory.mkdir()
    (directory / "tensorflow.py").write_text(does)
    return directory


def test_addresses_of_the_workers_differ() -> None:
    import digits_distributed

    first, second = digits_distributed._cluster()

    assert first != second


def test_second_worker_that_cannot_start_is_an_error_and_no_endless_wait(
    run_python: RunPython, tmp_path: Path
) -> None:
    broken = _tensorflow_that(tmp_path / "broken", "raise ImportError('made up')")

    ended = run_python(_START, broken)

    assert "RuntimeError: The second worker ended at once with code 1." in ended.stderr
    assert "made up" in ended.stderr


def test_second_worker_leaves_when_its_parent_is_gone(tmp_path: Path) -> None:
    waits = _tensorflow_that(
        tmp_path / "waits", "import threading; print('up', flush=True); threading.Event().wait()"
    )
    command = [sys.executable, str(FLOWS / "digits_distributed.py"), '{"cluster": []}']
    environment = {"PYTHONPATH": str(waits), "DO_NOT_TRACK": "1", "PREFECT_HOME": str(tmp_path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"

        worker.stdin.close()

        assert worker.wait(timeout=120) == 1
