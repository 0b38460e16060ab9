#!/usr/bin/env bash
# Checks this package on a real GPU: what its devices promise, one profile, and what two processes
# cost each other on one GPU. Takes a few minutes; without a GPU it says so and ends well.
#
#   tests/gpu/check.sh                     the first GPU
#   tests/gpu/check.sh --device 2          another one
#   tests/gpu/check.sh --devices cpu       the same on processor cores
#
# Needs Python 3.10, this package (installed, or its requirements) and PyTorch or TensorFlow.
# Without either, only the devices are checked. Set PYTHON to use another interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-}"
if [ -z "$python" ]; then
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
exec "$python" -m tests.gpu.check "$@"
