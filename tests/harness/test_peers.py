from __future__ import annotations

import re
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch import nn

from harness import peers
from harness.arms import PEERS, Arm, arm_named
from harness.importing import load
from harness.peers import main, peers_page
from harness.pytest_plugin import CheckCase
from harness.ranks import RankPool
from harness.runner import ArmError, RunOptions, check_arm, run_case
from matrix.case import parse_case
from wcn_ckpt.nn.modules import BasicBlock

NEEDED = {"fairscale_wrapper": "fairscale", "transformers_layer": "transformers"}


def installed(arm: Arm) -> bool:
    return find_spec(NEEDED.get(arm.name, "torch")) is not None


def or_skip(arm: Arm) -> Arm:
    if not installed(arm):
        pytest.skip(f"{NEEDED[arm.name]} is not installed")
    return arm


@pytest.mark.parametrize("arm", PEERS, ids=lambda arm: arm.name)
def test_a_peer_changes_no_name_and_can_be_switched_off(arm: Arm) -> None:
    block = BasicBlock(8, 8)
    keys = list(block.state_dict())
    switch = load(or_skip(arm).install)(block)

    switch(False)
    assert "forward" not in vars(block)
    switch(True)
    assert "forward" in vars(block)
    assert list(block.state_dict()) == keys
    with pytest.raises(ValueError, match="Linear has no boundary to checkpoint"):
        load(arm.install)(nn.Linear(1, 1))


@pytest.mark.parametrize("arm", PEERS, ids=lambda arm: arm.name)
def test_a_peer_replays_a_block_without_state_exactly(check_case: CheckCase, arm: Arm) -> None:
    check_case(parse_case("dropout,accumulation=plain_then_checkpointed"), arm=or_skip(arm).name)


@pytest.mark.parametrize("arm", PEERS, ids=lambda arm: arm.name)
def test_every_peer_changes_the_running_statistics_of_a_block(
    rank_pool: RankPool, arm: Arm
) -> None:
    row = run_case(parse_case("readme"), rank_pool, RunOptions(arm=or_skip(arm)))

    assert row.outcome == "differs"
    assert any(finding.path.startswith("buffers/norm.running_mean") for finding in row.findings)


def test_a_peer_that_is_not_installed_is_refused_by_name(rank_pool: RankPool) -> None:
    missing = Arm("missing", f"{Path(__file__).parent}/missing_peer.py:install", "for this test")

    with pytest.raises(ArmError, match=r"arm 'missing' cannot be used: .*wcn-ckpt\[peers\]"):
        check_arm(missing, rank_pool, 30.0)


def test_the_page_says_what_each_peer_does_on_each_axis(
    rank_pool: RankPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "RankPool", lambda size: nullcontext({2: rank_pool}[size]))
    missing = Arm("missing", f"{Path(__file__).parent}/missing_peer.py:install", "for this test")
    arms = (arm_named("torch_wrapper"), missing, arm_named("checkpointed"))

    page = peers_page(arms, axes=["dropout", "wrapper"], subjects=["readme", "python-random"])

    assert re.search(r"\| `missing` \| for this test \| not judged: arm 'missing'", page)
    assert "| case | `torch_wrapper` | `checkpointed` |" in page
    assert "| every axis at its default · `readme` | differs: buffers | equal |" in page
    assert "| `wrapper=ddp` · `readme,wrapper=ddp` | differs: buffers | equal |" in page
    assert "| `dropout=0.2` · `patch-attention,dropout=0.2` | equal | equal |" in page
    assert re.search(r"\| `python-random`: .* \| (equal|differs: .*) \| equal \|", page)
    with pytest.raises(SystemExit):
        main(["--axis", "none", "--out", str(tmp_path / "page.md")])
    assert not (tmp_path / "page.md").exists()
