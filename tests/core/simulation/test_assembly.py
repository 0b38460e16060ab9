from __future__ import annotations

from tests.core.building import MODEL
from tests.core.simulation.worlds import finished, profiles, run, submission
from xonar_prefect.core.simulation.assembly import assemble, gpus, with_requests

BOTH = {"a": 0.5, "b": 0.5}
CLASH = (MODEL, "a", "b")


def test_gpus_are_numbered_on_and_may_be_in_several_hosts() -> None:
    found = gpus(3, "K80", 12000, first=1, per_host=2)
    assert [each.index for each in found] == [1, 2, 3]
    assert [each.host for each in found] == ["host 0", "host 1", "host 1"]
    assert len({each.id for each in found}) == 3


def test_where_memory_is_unknown_the_measured_clashes_are_known_beforehand() -> None:
    for known, memory in ((profiles(BOTH, peak=None), 16000), (profiles(BOTH), None)):
        world = assemble(known, gpus(1, MODEL, memory), clashes=[CLASH])
        queue = with_requests(world, [submission("a", 10), submission("b", 10)])
        result = run(world, *queue)
        assert world.clashes == {CLASH}
        assert finished(result) == {"a": 10, "b": 20}
        assert not result.losses


def test_where_memory_is_known_clashes_have_to_be_learnt() -> None:
    world = assemble(profiles(BOTH), gpus(1, MODEL, 16000), clashes=[CLASH])
    queue = with_requests(world, [submission("a", 10), submission("b", 10)])
    assert [each.memory_request_mib for each in queue] == [None, None]
    assert world.clashes == frozenset()
    assert len(run(world, *queue).losses) == 1


def test_without_any_memory_everything_may_share() -> None:
    world = assemble(profiles(BOTH, peak=None), gpus(1, MODEL))
    queue = with_requests(world, [submission("a", 10), submission("b", 10)])
    assert {each.started_at_s for each in run(world, *queue).outcomes} == {0}


def test_measured_throughputs_are_the_truth() -> None:
    throughputs = {(MODEL, "a", "b"): 0.5, (MODEL, "b", "a"): 0.5}
    world = assemble(profiles(BOTH), gpus(1, MODEL, 16000), throughputs=throughputs)
    assert finished(run(world, submission("a", 10), submission("b", 10))) == {"a": 20, "b": 20}
