"""The command `xonar simulate`; what it needs is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from xonar_prefect.cli.output import AsJson

_Count = Annotated[int | None, Parameter(validator=Number(gte=1))]
_Seconds = Annotated[float | None, Parameter(validator=Number(gte=0, lte=1e9))]


def simulate(
    *,
    profiles: Path | None = None,
    colocation: Path | None = None,
    trace: Path | None = None,
    from_pool: str | None = None,
    gpus: tuple[str, ...] = (),
    gpus_per_host: _Count = None,
    trainings_per_gpu: Annotated[int | None, Parameter(validator=Number(gte=1, lte=16))] = None,
    queue_size: _Count = None,
    repeat: _Count = None,
    draw_from: str | None = None,
    seed: int = 0,
    durations: Literal["equal", "lognormal"] = "lognormal",
    policy: tuple[str, ...] = (),
    startup: _Seconds = None,
    profiled: Literal["none", "all"] = "all",
    remaining: Literal["known", "reported"] = "known",
    remember: Annotated[bool, Parameter(negative="")] = False,
    max_wait: _Seconds = None,
    json: AsJson = False,
    plot: Path | None = None,
    explain: str | None = None,
) -> int:
    """Show what a queue of trainings would have come to, under one policy or another.

    The same code decides as in a worker, on a virtual clock. Policies are compared with
    `parallel`, first-come-first-served pairs that fit in memory, over the same queues.

    In the table, queueing delay is the mean time from a submission to the release, and fairness the
    mean of JCT / JCT with an equal share of the GPUs: at most 1 is fair.

    Example: `xonar simulate --profiles profiles.csv --trace trace.csv --gpus 4:V100:32768 --policy
    all`, or `xonar simulate --from-pool gpu-box --policy all`

    Args:
        profiles: CSV file of profiles: training, gpu_model, active_ms, idle_ms, step_ms,
            peak_memory_mib. An empty cell is unknown.
        colocation: CSV file of measured pairs: gpu_model, training_a, training_b,
            normalised_throughput_a, normalised_throughput_b, out_of_memory (1 where the pair ran
            out of it, else 0 or empty). Other pairs share the processor: both slow down by
            1 + u v, u and v being their active fractions.
        trace: CSV file of a queue: submit_s, training, solo_duration_s (on the model of the first
            --gpus on which the training has a step time), gpus; optionally priority (1 comes
            first, and is the default), owner and queue (rows of the same queue are an experiment
            of their own).
        from_pool: Replay the recorded history of this work pool instead of files.
        gpus: COUNT[:MODEL[:MEMORY_MIB]]; several times for a mixed pool. By default one GPU of the
            profiles' model. Without a memory all trainings fit, but for pairs of --colocation
            that ran out of it.
        gpus_per_host: How many of them --plot draws in one host; by default all. It changes no
            figure: what is simulated is one pool, so a training on several GPUs may span hosts.
        trainings_per_gpu: How many trainings may share a GPU; by default as in a worker.
        queue_size: Without a trace: trainings in each sampled queue, ten by default.
        repeat: Without a trace: number of sampled queues, fifty by default.
        draw_from: Sample only trainings named like this (`*|1gpu`); with a trace, draw its unnamed
            trainings from these.
        seed: Seed of everything that is drawn.
        durations: Of sampled trainings: log-normal (median 600 s, sigma 1), or all equal.
        policy: Policy to simulate, or `all`; several times for several. By default the default one.
        startup: Seconds that a training has its GPUs for besides its steps: to start up, save and
            end. By default as measured: the median of those that ended well on these GPU models,
            as this host's store knows them, and 0 where it knows none; with --from-pool each its
            own.
        profiled: Whether profiles are known from the start or after the first run of a kind.
        remaining: Whether remaining times are known from the start or reported by running
            trainings.
        remember: Keep what one queue taught for the next one.
        max_wait: Seconds after which nobody submitted later may delay a training; by default none,
            with --from-pool as in a worker.
        json: Print JSON.
        plot: Also draw who was where, and the distribution of JCTs, into this SVG file.
        explain: Also print the decisions about this queue, with their reasons (`q00`; the only
            queue of a trace without names is `0`). A hold is shown when its kind of reason is new
            for the training; --json has every new sentence.
    """
    from xonar_prefect.cli.simulate.options import Options
    from xonar_prefect.cli.simulate.running import run

    options = Options(
        profiles=profiles,
        colocation=colocation,
        trace=trace,
        from_pool=from_pool,
        gpus=gpus,
        gpus_per_host=gpus_per_host,
        trainings_per_gpu=trainings_per_gpu,
        queue_size=queue_size,
        repeat=repeat,
        draw_from=draw_from,
        seed=seed,
        durations=durations,
        policies=policy,
        startup=startup,
        profiled=profiled,
        remaining=remaining,
        remember=remember,
        max_wait=max_wait,
        json=json,
        plot=plot,
        explain=explain,
    )
    return run(options)
