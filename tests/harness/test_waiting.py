from __future__ import annotations

from harness.findings import CauseKind
from harness.ranks.pool import RankResult
from harness.verdict import RankVerdict, combine
from harness.waiting import missing_collective, place_of

IN_REPLAY = """still busy
Thread 0x1 (most recent call first):
  File "/lib/threading.py", line 982 in run

Current thread 0x2 (most recent call first):
  File "/site/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/site/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/blocks.py", line 146 in _forward
  File "/site/torch/utils/checkpoint.py", line 1688 in recompute_fn
  File "/site/torch/utils/checkpoint.py", line 1183 in unpack_hook
  File "/site/torch/autograd/graph.py", line 979 in _engine_run_backward
  File "/home/me/program.py", line 232 in _backward
"""
IN_FORWARD = """RuntimeError: gloo said no
Traceback (most recent call last):
  File "/home/me/program.py", line 187, in run
    self._model(x)
  File "/site/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
  File "/home/me/blocks.py", line 146, in _forward
    dist.all_reduce(total)
  File "/site/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    work = group.allreduce([tensor], opts)
"""


def test_a_place_is_read_from_stacks_and_from_a_traceback() -> None:
    assert str(place_of(IN_REPLAY)) == "all_reduce (blocks.py, line 146, in _forward), in a replay"
    assert str(place_of(IN_FORWARD)) == "all_reduce (blocks.py, line 146, in _forward)"
    assert place_of("no frames") is None


def test_a_rank_that_is_through_did_not_enter_the_collective() -> None:
    found = missing_collective({0: place_of(IN_REPLAY), 1: None})

    assert found is not None
    assert found[:2] == (0, 1)
    assert "rank 1 did not enter the collective all_reduce that rank 0 reached" in found[2]
    assert "was through with the case" in found[2]


def test_ranks_that_wait_in_the_same_place_miss_nothing() -> None:
    assert missing_collective({0: place_of(IN_REPLAY), 1: place_of(IN_REPLAY)}) is None
    assert missing_collective({0: place_of(IN_FORWARD), 1: None}) is None


def test_a_verdict_names_the_rank_and_the_collective() -> None:
    waiting = RankResult(rank=0, status="stalled", error="still busy", detail=IN_REPLAY)
    through = RankResult(rank=1, status="returned", value=RankVerdict())

    verdict = combine([waiting, through])

    assert verdict.outcome == "hung"
    finding = verdict.findings[0]
    assert (finding.kind, finding.source_rank) == (CauseKind.MISSING_COLLECTIVE, 1)
    assert "same boundaries in the same order" in finding.remedy
