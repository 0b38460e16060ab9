"""Measures in a process of its own, so that no framework of one training meets another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def results_of(module: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a module, and return what it prints as JSON, one object per line.

    Where it fails, what it says goes to standard error, and what it printed before that counts.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"},
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
