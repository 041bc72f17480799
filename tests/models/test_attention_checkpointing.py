"""Training the attention models with every block recomputed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import Geometry, Voxels
from wcn_ckpt.models import PointTransformerV3, SpaCeFormer
from wcn_ckpt.nn.modules import GradientCheckpointingMixin, configure_gradient_checkpointing

Model = PointTransformerV3 | SpaCeFormer
SMALL: dict[str, Any] = {
    "in_channels": 3,
    "enc_depths": (1, 1),
    "enc_channels": (8, 16),
    "enc_num_head": (2, 4),
    "enc_patch_size": (16, 8),
    "dec_depths": (1,),
    "dec_channels": (12,),
    "dec_num_head": (2,),
    "dec_patch_size": (8,),
    "out_channels": 5,
}
WINDOWS: dict[str, Any] = {
    **SMALL,
    "enc_patch_size": (4, 8),
    "dec_patch_size": (5,),
    "enc_attn_types": "sc",
    "dec_attn_types": "s",
    "use_rope": True,
}
MODELS: dict[str, tuple[type[Model], dict[str, Any]]] = {
    "ptv3": (PointTransformerV3, {**SMALL, "drop_path": 0.0}),
    "ptv3-drops": (
        PointTransformerV3,
        {**SMALL, "drop_path": 0.2, "attn_drop": 0.1, "proj_drop": 0.1},
    ),
    "ptv3-random": (PointTransformerV3, {**SMALL, "orders": ("random",)}),
    "ptv3-batch": (PointTransformerV3, {**SMALL, "origin": "batch"}),
    "spaceformer": (SpaCeFormer, {**WINDOWS, "drop_path": 0.0}),
    "spaceformer-drops": (SpaCeFormer, {**WINDOWS, "drop_path": 0.2, "attn_drop": 0.1}),
    "spaceformer-random": (
        SpaCeFormer,
        {**WINDOWS, "voxel_offsets": ("random",), "patch_orders": ("random",)},
    ),
    "spaceformer-post": (SpaCeFormer, {**WINDOWS, "block_type": "post_norm"}),
    "spaceformer-stream": (
        SpaCeFormer,
        {**WINDOWS, "block_type": "stream_norm", "enc_attn_types": "ca", "origin": "batch"},
    ),
}


def make(name: str, **options: Any) -> Model:
    cls, settings = MODELS[name]
    torch.manual_seed(0)
    return cls(**{**settings, **options})


def scene() -> Voxels:
    return make_voxels((90, 0, 40, 1, 0), channels=3, dtype=torch.float32, low=-8, high=8)


def boundaries(model: nn.Module) -> list[GradientCheckpointingMixin]:
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingMixin)]


def bf16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def train_step(model: nn.Module, precision: Any = nullcontext) -> dict[str, Tensor]:
    """Return output, gradients, buffers and what comes next from the generator."""
    torch.manual_seed(1)
    rows = scene().feats.requires_grad_()
    with precision():
        out = model(scene().replace_features(rows))
    out.batched_features.tensor.float().square().mean().backward()
    assert rows.grad is not None
    return {
        "output": out.feats.detach(),
        "input": rows.grad,
        **{name: p.grad for name, p in model.named_parameters() if p.grad is not None},
        **{f"buffer {name}": value.clone() for name, value in model.named_buffers()},
        "next": torch.rand(3),
    }


@contextmanager
def counted_calls(model: nn.Module) -> Iterator[dict[nn.Module, int]]:
    """Count how often each boundary computes."""
    calls: dict[nn.Module, int] = {}
    for block in boundaries(model):
        original = block._forward  # type: ignore[attr-defined]  # every boundary has one

        def count(x: Geometry, order: Any, block: Any = block, original: Any = original) -> Any:
            calls[block] = calls.get(block, 0) + 1
            return original(x, order)

        block._forward = count  # type: ignore[attr-defined]  # looked up at the call
    yield calls


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", [nullcontext, bf16])
def test_a_training_step_is_the_same_with_checkpointing(name: str, precision: Any) -> None:
    ordinary = make(name)
    recomputed = copy.deepcopy(ordinary)
    recomputed.gradient_checkpointing_enable()

    expected, got = train_step(ordinary, precision), train_step(recomputed, precision)

    assert expected.keys() == got.keys()
    assert [key for key in expected if not torch.equal(expected[key], got[key])] == []
    assert len([key for key in got if key in dict(recomputed.named_parameters())]) == len(
        list(recomputed.parameters())
    )
    tracked = [value for key, value in got.items() if key.endswith("num_batches_tracked")]
    assert tracked
    assert all(value == 1 for value in tracked)


@pytest.mark.parametrize("name", ["ptv3-random", "spaceformer-random"])
def test_random_groups_need_no_kept_generator_state(name: str) -> None:
    ordinary = make(name, drop_path=0.0)
    recomputed = copy.deepcopy(ordinary)
    recomputed.gradient_checkpointing_enable({"preserve_rng_state": False})

    expected, got = train_step(ordinary), train_step(recomputed)

    assert [key for key in expected if not torch.equal(expected[key], got[key])] == []


@pytest.mark.parametrize("name", ["ptv3", "spaceformer"])
def test_switching_at_runtime(name: str) -> None:
    model = make(name)
    started = make(name, use_checkpoint=True)
    keys = list(model.state_dict())
    with counted_calls(model) as calls:
        for enable, runs in ((False, 1), (True, 2), (False, 1)):
            assert configure_gradient_checkpointing(model, enable) == 3
            assert model.is_gradient_checkpointing is model.use_checkpoint is enable
            calls.clear()
            train_step(model)
            assert list(calls.values()) == [runs] * 3

    model.use_checkpoint = True
    assert all(block.gradient_checkpointing for block in boundaries(model))
    assert all(block.gradient_checkpointing for block in boundaries(started))
    assert list(model.state_dict()) == list(started.state_dict()) == keys
    assert not any("checkpoint" in key for key in keys)
    started.load_state_dict(model.state_dict())


@pytest.mark.parametrize("name", ["ptv3", "spaceformer"])
def test_transformers_switches_and_trains_the_blocks(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the `hf` extra")

    class Pretrained(transformers.PreTrainedModel):  # type: ignore[misc, name-defined]
        config_class = transformers.PretrainedConfig
        supports_gradient_checkpointing = True

        def __init__(self) -> None:
            super().__init__(transformers.PretrainedConfig())
            self.backbone = make(name)

        def forward(self, x: Voxels) -> Voxels:
            out: Voxels = self.backbone(x)
            return out

    model = Pretrained().train()
    expected = train_step(model)
    with counted_calls(model) as calls:
        model.zero_grad()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.reset_running_stats()
        model.activation_checkpointing_enable({"preserve_rng_state": False})
        got = train_step(model)

    assert list(calls.values()) == [2] * 3
    assert {
        b._gradient_checkpointing_func.keywords["preserve_rng_state"] for b in boundaries(model)
    } == {False}  # type: ignore[attr-defined]  # a partial
    assert [key for key in expected if not torch.equal(expected[key], got[key])] == []
    model.activation_checkpointing_disable()
    assert not any(block.gradient_checkpointing for block in boundaries(model))
    with pytest.raises(ValueError, match="use_reentrant=False"):
        model.activation_checkpointing_enable({"use_reentrant": True})


def saved_bytes(model: nn.Module) -> int:
    """Return the bytes kept for backward outside the parameters, each storage once."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # Keeping the tensor keeps its address from being given to another one.
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(scene())
    assert out.feats.requires_grad
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("name", ["ptv3", "spaceformer"])
def test_checkpointing_keeps_less(name: str) -> None:
    deep = {"enc_depths": (4, 4), "dec_depths": (4,), "shuffle_orders": False}
    ordinary = make(name, **deep)
    recomputed = make(name, **deep, use_checkpoint=True)

    assert saved_bytes(recomputed) < 0.5 * saved_bytes(ordinary)
