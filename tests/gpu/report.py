"""The result of a check as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xonar_prefect.core.interference import FIRST_SHARING_COST


def render(result: Mapping[str, Any]) -> str:
    """Return the tables; unknown is a dash."""
    return "\n".join(_lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield "\nDevices"
    for device in result["devices"]:
        yield (
            f"  {device['index']:>3}  {device['id']}  {device['model']}  {device['memory_mib']} MiB"
            f" ({device['reserved_mib']} reserved, {device['used_mib']} used)"
            f"  {device['unavailable'] or 'available'}"
        )
    yield "\nPromises"
    for name, problem in result["promises"].items():
        yield f"  {'kept  ' if problem is None else 'BROKEN'}  {name.replace('_', ' ')}"
        if problem is not None:
            yield f"          {problem}"
    if (problem := result.get("problem")) is not None:
        yield f"\nNothing was measured: {problem}."
    if (measured := result.get("measured")) is not None:
        yield from _measured_lines(measured)
        yield from _memory_lines(measured)
    for problem in result.get("wrong", ()):
        yield f"\nWRONG: {problem}."


def _measured_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    load = measured["loads"][0]
    yield f"\nLoad: {load['description']}; a step computes {1000 * load['compute_seconds']:.1f} ms"
    used = ", ".join(_text(mib, "{} MiB") for mib in measured["used_by_load_mib"])
    yield f"  memory attributed to the two: {used} (of {measured['used_mib']} MiB in use)"
    yield f"  memory back after their end: {_text(measured.get('memory_back_s'), '{:.1f} s')}"
    yield "\nProfiles by this package"
    yield "  active, true   measured   error   step        steps   by"
    for profile in measured["profiles"]:
        yield f"  {_profile_line(profile)}"
    yield f"\nPairs (sharing cost e = {FIRST_SHARING_COST})"
    yield "  active A/B    1 + uv   1 + (1+e)uv   measured A/B   pair gain"
    for pair in measured["pairs"]:
        (first, second), (slow_a, slow_b) = pair["active_fraction"], pair["measured_slowdown"]
        yield (
            f"  {first:.2f}/{second:.2f}"
            f"     {pair['predicted_slowdown_without_sharing_cost']:>6.2f}"
            f"   {pair['predicted_slowdown'][0]:>11.2f}"
            f"   {slow_a:>7.2f}/{slow_b:.2f}"
            f"   {pair['pair_gain']:>9.2f}"
        )


def _profile_line(profile: Mapping[str, Any]) -> str:
    true = profile["true_active_fraction"]
    if "problem" in profile:
        return f"{true:>12.2f}   {profile['problem']}"
    measured = profile["active_fraction"]
    error = None if measured is None else measured - true
    return (
        f"{true:>12.2f}   {_text(measured, '{:.2f}'):>8}   {_text(error, '{:+.2f}'):>5}"
        f"   {1000 * profile['step_seconds']:>6.1f} ms   {profile['steps']:>5}"
        f"   {profile['source'] or 'nothing'}"
    )


def _memory_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "\nMemory (MiB)"
    yield " taken   driver's growth   device's growth   allocator's peak   profile   driver, total"
    for row in measured["memory"]:
        yield (
            f" {row['taken_mib']:>5}   {_text(row['driver_growth_mib'], '{}'):>15}"
            f"   {row['device_growth_mib']:>15}   {_text(row['allocator_mib'], '{:.0f}'):>16}"
            f"   {_text(row['profile_mib'], '{}'):>7}   {_text(row['driver_mib'], '{}'):>14}"
            f"   ({row['profile_source'] or 'unknown'})"
        )
    cap = measured.get("cap")
    if cap is None:
        return
    ending = f"ran out of memory ({cap['error']})" if cap["out_of_memory"] else "was NOT stopped"
    yield f"\nCap of {cap['limit_mib']} MiB"
    yield f"  the load that exceeds it {ending} after {cap['held_mib']} MiB"
    yield (
        f"  its neighbour made {cap['neighbour_steps_meanwhile']} steps meanwhile, "
        f"{cap['neighbour_steps_before']} in the same time before"
    )


def _text(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)
