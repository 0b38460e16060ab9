#!/usr/bin/env bash
# Checks this package on a real GPU: what its devices promise, profiles of loads whose active
# fraction is known, memory by three accounts, what two processes cost each other on one GPU, and
# one that exceeds its cap. Takes at most eight minutes; without a GPU it says so and ends well.
# Prints tables and writes JSON (`--json FILE`, by default gpu-check.json); keep both in
# tests/gpu/results/.
#
#   tests/gpu/check.sh                     the first GPU
#   tests/gpu/check.sh --device 2          another one
#   tests/gpu/check.sh --devices cpu       the same on processor cores
#
# Needs Python 3.10, this package (installed, or its requirements) and PyTorch, TensorFlow or JAX.
# Without any, only the devices are checked. Set PYTHON to use another interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-}"
if [ -z "$python" ]; then
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
exec timeout 480 "$python" -m tests.gpu.check "$@"
