"""The pool and worker of the worker's own tests serve here too."""

from tests.worker.conftest import ledger, pool, settings, working  # noqa: F401
