"""Dense and sparse flow models of TRELLIS.2."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.geometry.clouds import make_points
from tests.models.trellis import (
    CHANNELS,
    COND,
    FLOWS,
    HEADS,
    SIDE,
    SIZES,
    flow,
    flow_inputs,
    scene,
    tensor,
)
from tests.nn.twins import assert_twins_agree, boundaries, bytes_kept
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models import SLatFlowModel, SparseStructureFlowModel
from wcn_ckpt.nn.modules import RotaryPositionEmbedder, SinusoidalPositionEmbedder


def features(out: Any) -> Tensor:
    rows: Tensor = out.feats if isinstance(out, Voxels) else out
    return rows


@pytest.mark.parametrize("share_mod", [False, True])
@pytest.mark.parametrize("pe_mode", ["ape", "rope"])
def test_the_dense_model_is_its_parts(pe_mode: str, share_mod: bool) -> None:
    model = flow(SparseStructureFlowModel, pe_mode=pe_mode, share_mod=share_mod)
    x, t, cond = flow_inputs(SparseStructureFlowModel)

    out = model(x, t, cond)

    cells = torch.cartesian_prod(*[torch.arange(SIDE)] * 3)
    tokens = torch.stack([x[:, :, i, j, k] for i, j, k in cells.tolist()], dim=1)
    h = model.input_layer(tokens)
    phases = None
    if pe_mode == "ape":
        h = h + SinusoidalPositionEmbedder(CHANNELS)(cells.float())
    else:
        phases = RotaryPositionEmbedder(CHANNELS // HEADS)(cells)
    mod = model.t_embedder(t)
    mod = model.adaLN_modulation(mod) if share_mod else mod
    for block in model.blocks:
        h = block(h, mod, cond, phases)
    h = model.out_layer(F.layer_norm(h, (CHANNELS,), eps=1e-5))
    for row, (i, j, k) in enumerate(cells.tolist()):
        torch.testing.assert_close(out[:, :, i, j, k], h[:, row])
    assert out.shape == (2, 5, SIDE, SIDE, SIDE)


@pytest.mark.parametrize("share_mod", [False, True])
@pytest.mark.parametrize("pe_mode", ["ape", "rope"])
def test_the_sparse_model_is_its_parts(pe_mode: str, share_mod: bool) -> None:
    model = flow(SLatFlowModel, pe_mode=pe_mode, share_mod=share_mod)
    x, t, cond = flow_inputs(SLatFlowModel)

    out = model(x, t, cond)

    rows = model.input_layer(x.feats)
    if pe_mode == "ape":
        rows = rows + SinusoidalPositionEmbedder(CHANNELS)(x.coordinates.float())
    mod = model.t_embedder(t)
    mod = model.adaLN_modulation(mod) if share_mod else mod
    h = x.replace_features(rows)
    for block in model.blocks:
        h = block(h, mod, cond)
    expected = model.out_layer(F.layer_norm(h.feats, (CHANNELS,), eps=1e-5))
    assert torch.equal(out.feats, expected)
    assert out.batched_coordinates is x.batched_coordinates


@pytest.mark.parametrize("pe_mode", ["ape", "rope"])
def test_full_grids_are_the_same_to_both(pe_mode: str) -> None:
    dense = flow(SparseStructureFlowModel, pe_mode=pe_mode, qk_rms_norm=True).double()
    sparse = flow(SLatFlowModel, pe_mode=pe_mode, qk_rms_norm=True).double()
    sparse.load_state_dict(dense.state_dict())
    x, t, cond = (a.double() for a in flow_inputs(SparseStructureFlowModel))
    cells = torch.cartesian_prod(*[torch.arange(SIDE, dtype=torch.int32)] * 3)
    grid = Voxels([cells, cells], list(x.flatten(2).transpose(1, 2)))

    out = sparse(grid, t, cond).feats.reshape(2, SIDE**3, 5).transpose(1, 2)

    torch.testing.assert_close(out.unflatten(2, (SIDE,) * 3), dense(x, t, cond), rtol=0, atol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("share_mod", [False, True])
@pytest.mark.parametrize("pe_mode", ["ape", "rope"])
@pytest.mark.parametrize("cls", FLOWS)
def test_checkpointing_changes_nothing(
    cls: Any, pe_mode: str, share_mod: bool, autocast: bool
) -> None:
    model = flow(cls, pe_mode=pe_mode, share_mod=share_mod, qk_rms_norm=True)
    x, t, cond = flow_inputs(cls)

    assert_twins_agree(model, x, t, cond=cond, autocast=autocast)


@pytest.mark.parametrize("cls", FLOWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_checkpointing_changes_nothing_in_half_precision(cls: Any, dtype: str) -> None:
    assert_twins_agree(flow(cls, dtype=dtype, share_mod=True), *flow_inputs(cls))


@pytest.mark.parametrize("cls", FLOWS)
def test_boundaries_and_how_they_are_switched(cls: Any) -> None:
    model = flow(cls, num_blocks=3, use_checkpoint=True)

    assert len(boundaries(model)) == 3
    assert boundaries(model) == list(model.blocks)
    assert model.use_checkpoint
    assert all(block.use_checkpoint for block in model.blocks)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    model.gradient_checkpointing_enable({"preserve_rng_state": False})
    assert model.blocks[0]._gradient_checkpointing_func.keywords == {
        "preserve_rng_state": False,
        "use_reentrant": False,
    }
    assert not flow(cls).use_checkpoint
    with pytest.raises(ValueError, match="no gradient-checkpointing boundary"):
        flow(cls, num_blocks=0).gradient_checkpointing_enable()


@pytest.mark.parametrize("use_rope", [False, True])
def test_a_cloud_does_not_know_its_batch(use_rope: bool) -> None:
    model = flow(SLatFlowModel, pe_mode="rope" if use_rope else "ape").double().eval()
    x, t, cond = (a.double() for a in flow_inputs(SLatFlowModel))

    together = model(x, t, cond)

    for b in range(len(SIZES)):
        alone = model(x[b], t[b : b + 1], cond[b : b + 1])
        torch.testing.assert_close(together[b].feats, alone.feats, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", FLOWS)
def test_dtypes(cls: Any) -> None:
    model = flow(cls, dtype="bf16", share_mod=True, qk_rms_norm=True)
    x, t, cond = flow_inputs(cls)
    assert model.dtype == torch.bfloat16

    matrices = {
        f"{name}.{kind}"
        for name, m in model.blocks.named_modules()
        if isinstance(m, nn.Linear)
        for kind in ("weight", "bias")
    }
    for name, parameter in model.blocks.named_parameters():
        assert parameter.dtype == (torch.bfloat16 if name in matrices else torch.float32), name
    assert {p.dtype for p in model.out_layer.parameters()} == {torch.float32}
    seen: list[torch.dtype] = []
    model.blocks[0].register_forward_pre_hook(
        lambda module, args: seen.extend(a.dtype for a in args if a is not None)
    )
    out = features(model(x, t, cond))
    assert set(seen) == {torch.bfloat16}
    assert out.dtype == torch.float32

    model.convert_to("float32")
    assert model.dtype == torch.float32
    torch.testing.assert_close(out, features(model(x, t, cond)), rtol=0, atol=0.1)
    for name in ("f16", "fp16", "float16", torch.float16):
        assert flow(cls, dtype=name).dtype == torch.float16


@pytest.mark.parametrize("cls", FLOWS)
def test_autocast_chooses_the_dtype_by_itself(cls: Any) -> None:
    model = flow(cls, dtype="float32")
    seen: list[torch.dtype] = []
    model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[1].dtype))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(*flow_inputs(cls))

    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("to", ["double", "bfloat16"])
def test_phases_keep_both_parts_when_the_model_is_cast(to: str) -> None:
    model = flow(SparseStructureFlowModel, pe_mode="rope")
    phases = model.rope_phases.clone()
    assert phases.shape == (SIDE**3, CHANNELS // HEADS // 2)

    model = getattr(model, to)()

    assert torch.equal(model.rope_phases, phases)
    moved = model.to(dtype=torch.float32)
    assert torch.equal(moved.rope_phases, phases)
    assert moved.to_empty(device="meta").rope_phases.is_meta
    assert torch.equal(
        copy.deepcopy(flow(SparseStructureFlowModel, pe_mode="rope")).rope_phases, phases
    )


def test_frequencies_reach_the_phases() -> None:
    model = flow(SparseStructureFlowModel, pe_mode="rope", rope_freq=(2.0, 50.0))

    expected = RotaryPositionEmbedder(12, rope_freq=(2.0, 50.0))(model._grid())
    assert torch.equal(model.rope_phases, expected)
    sparse = flow(SLatFlowModel, pe_mode="rope", rope_freq=(2.0, 50.0))
    assert sparse.blocks[0].self_attn.rope.rope_freq == (2.0, 50.0)


@pytest.mark.parametrize("pe_mode", ["ape", "rope"])
@pytest.mark.parametrize("cls", FLOWS)
def test_state_keys(cls: Any, pe_mode: str) -> None:
    names = {key.split(".")[0] for key in flow(cls, pe_mode=pe_mode, share_mod=True).state_dict()}

    assert names == {"t_embedder", "adaLN_modulation", "input_layer", "blocks", "out_layer"}
    assert names - {"adaLN_modulation"} == {
        key.split(".")[0] for key in flow(cls, pe_mode=pe_mode).state_dict()
    }


@pytest.mark.parametrize("cls", FLOWS)
def test_configurations(cls: Any) -> None:
    model = cls(SIDE, 4, 128, COND, 5, 1, initialization="scaled", something_new=3)

    assert model.num_heads == 2
    assert model.initialization == "scaled"


@pytest.mark.parametrize("pe_mode", ["ape", "rope"])
def test_nothing_stays_nothing(pe_mode: str) -> None:
    model = flow(SLatFlowModel, pe_mode=pe_mode, use_checkpoint=True)

    out = model(scene(4, (0, 0)), tensor(2), tensor(2, 6, COND))

    assert out.feats.shape == (0, 5)
    assert out.batch_size == 2
    out.feats.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("cls", FLOWS)
def test_checkpointing_keeps_less(cls: Any) -> None:
    if cls is SLatFlowModel:
        x, t, cond = scene(4, (300, 200)), tensor(2), tensor(2, 6, COND)
    else:
        x, t, cond = flow_inputs(cls)
    ordinary = flow(cls, num_blocks=6, pe_mode="rope")
    ordinary(x, t, cond)  # tables of the coordinates are made once and stay with them
    recomputed = flow(cls, num_blocks=6, pe_mode="rope", use_checkpoint=True)

    assert bytes_kept(recomputed, x, t, cond) < 0.2 * bytes_kept(ordinary, x, t, cond)


GRID, TIMES, CONDITION = flow_inputs(SparseStructureFlowModel)
CLOUDS, CLOUD_TIMES, CLOUD_CONDITION = flow_inputs(SLatFlowModel)


@pytest.mark.parametrize("cls", FLOWS)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pe_mode": "none"}, ValueError, "pe_mode must be 'ape' or 'rope', got 'none'"),
        ({"dtype": "float8"}, KeyError, "no dtype 'float8'; known are"),
        ({"dtype": "float8"}, ValueError, "no dtype 'float8'; known are"),
        ({"num_heads": 5}, ValueError, "channels=24.*num_heads=5"),
        (
            {"num_heads": None},
            ValueError,
            "channels=24 leaves no head of num_head_channels=64",
        ),
        ({"num_blocks": -1}, ValueError, "num_blocks.*-1"),
        ({"num_head_channels": 0}, ValueError, "num_head_channels.*0"),
        ({"num_blocks": 1.5}, TypeError, "num_blocks.*1.5"),
        ({"mlp_ratio": 0}, ValueError, "mlp_ratio.*got 0"),
        ({"mlp_ratio": float("nan")}, ValueError, "mlp_ratio.*got nan"),
    ],
)
def test_constructors_refuse(
    cls: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        flow(cls, **options)


@pytest.mark.parametrize(
    ("cls", "args", "error", "message"),
    [
        (FLOWS[0], (GRID[:, :3], TIMES, CONDITION), ValueError, r"\(B, 4, 3, 3, 3\)"),
        (FLOWS[0], (GRID[..., :2], TIMES, CONDITION), ValueError, r"\(2, 4, 3, 3, 2\)"),
        (FLOWS[0], (GRID, TIMES[:1], CONDITION), ValueError, r"t must .*\(2,\).*got \(1,\)"),
        (FLOWS[0], (GRID, 0.5, CONDITION), TypeError, "t must be a tensor.*float"),
        (FLOWS[0], (GRID, TIMES, CONDITION[:1]), ValueError, r"cond .*\(2, L_c, 10\)"),
        (FLOWS[0], (GRID, TIMES, CONDITION[..., :3]), ValueError, r"cond .*\(2, 6, 3\)"),
        (FLOWS[0], (GRID.double(), TIMES, CONDITION), TypeError, "float64.*float32"),
        (FLOWS[1], (CLOUDS.feats, CLOUD_TIMES, CLOUD_CONDITION), TypeError, "got Tensor"),
        (FLOWS[1], (make_points(SIZES), CLOUD_TIMES, CLOUD_CONDITION), TypeError, "Points"),
        (FLOWS[1], (scene(3), CLOUD_TIMES, CLOUD_CONDITION), ValueError, "got 3"),
        (FLOWS[1], (CLOUDS, CLOUD_TIMES[:2], CLOUD_CONDITION), ValueError, r"\(4,\)"),
        (FLOWS[1], (CLOUDS, CLOUD_TIMES, CONDITION), ValueError, r"cond .*\(4, L_c, 10\)"),
        (FLOWS[1], (CLOUDS, CLOUD_TIMES, [CONDITION]), NotImplementedError, "list of 1"),
        (FLOWS[1], (CLOUDS, CLOUD_TIMES, [CONDITION]), ValueError, "list of 1"),
        (FLOWS[1], (CLOUDS.double(), CLOUD_TIMES, CLOUD_CONDITION), TypeError, "float64"),
    ],
)
def test_forward_refuses(cls: Any, args: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        flow(cls)(*args)
