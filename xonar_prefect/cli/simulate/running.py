"""Runs `xonar simulate` from its options to its exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from xonar_prefect.cli.output import print_json
from xonar_prefect.cli.simulate import plot, report
from xonar_prefect.cli.simulate.explanation import Explanation
from xonar_prefect.cli.simulate.options import Options
from xonar_prefect.cli.simulate.performance import perform
from xonar_prefect.cli.simulate.scenario import Queues, Scenario, from_files
from xonar_prefect.core.policies import POLICIES, Policy, policy_named
from xonar_prefect.errors import WrongUsageError

_OK = 0
_INTERRUPTED = 130


def run(options: Options) -> int:
    """Simulate, print the result and return the exit status.

    Raises:
        FileError: A file cannot be used.
        SettingsError: An option is wrong.
        SimulationError: The simulation cannot go on.
    """
    options.check()
    policies = _policies(options.policies)
    scenario = from_files(options) if options.from_pool is None else _from_pool(options)
    explanation = _explanation(options, scenario.queues)
    done = perform(
        scenario,
        policies,
        remember=options.remember,
        keep=options.plot is not None,
        explanation=explanation,
    )
    if options.json:
        print_json(report.as_json(scenario, done, options.seed, explanation))
    else:
        report.show(scenario, done, explanation)
    if options.plot is not None:
        plot.write(
            options.plot,
            plot.draw(
                done,
                scenario.world.devices,
                scenario.world.limits.max_trainings_per_gpu,
                None if explanation is None else explanation.queue,
            ),
        )
    if done.interrupted is None:
        return _OK
    sys.stderr.write(f"xonar: {done.interrupted} The figures are of what was done before.\n")
    return _INTERRUPTED


def _from_pool(options: Options) -> Scenario:
    from xonar_prefect.cli.simulate.pool_history import from_pool

    return from_pool(options)


def _policies(names: Sequence[str]) -> list[Policy]:
    """Return the policies of these names and, for comparison, the baseline."""
    if "all" in names:
        return list(POLICIES.values())
    chosen = [policy_named(name) for name in names] or [_default_policy()]
    baseline = policy_named(report.BASELINE)
    return list(dict.fromkeys([*chosen, baseline]))


def _default_policy() -> Policy:
    from xonar_prefect.settings import load_settings

    return policy_named(load_settings().policy)


def _explanation(options: Options, queues: Queues) -> Explanation | None:
    queue = options.explain
    if queue is None:
        return None
    if queue in queues:
        return Explanation(queue, every_hold=options.json)
    if len(queues) == 1 and queue in {"-", "0", "1"}:
        return Explanation(next(iter(queues)), every_hold=options.json)
    names = ", ".join(repr(name or "0") for name in list(queues)[:5])
    more = " ..." if len(queues) > 5 else ""
    raise WrongUsageError(f"There is no queue {queue!r} to explain; there are {names}{more}.")
