"""What Prefect imports by entry point: the worker type and the blocks; never TensorFlow."""

from xonar_prefect.worker.worker import XonarWorker

__all__ = ["XonarWorker"]
