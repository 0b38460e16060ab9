"""`@xonar_task`: `@task` with a profiling task run beside the training."""

from xonar_prefect.tasks.decorator import XonarTask, xonar_task

__all__ = ["XonarTask", "xonar_task"]
