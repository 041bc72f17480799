"""Dense transformer blocks: parts, equations written out, and checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.nn.twins import assert_twins_agree, bytes_kept, fill_zeros
from wcn_ckpt.nn.modules import (
    FeedForwardNet,
    ModulatedTransformerBlock,
    ModulatedTransformerCrossBlock,
    MultiHeadAttention,
    RotaryPositionEmbedder,
)

BATCH, LENGTH, CHANNELS, HEADS, CONTEXT = 2, 5, 24, 2, 10


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(cls: type[nn.Module], *args: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return cls(*args, **options)


def phases(length: int = LENGTH) -> Tensor:
    cells = torch.randint(0, 20, (length, 3), generator=torch.Generator().manual_seed(3))
    return RotaryPositionEmbedder(CHANNELS // HEADS)(cells)


def self_block(**options: Any) -> ModulatedTransformerBlock:
    block: ModulatedTransformerBlock = make(
        ModulatedTransformerBlock, CHANNELS, HEADS, mlp_ratio=2, **options
    )
    return block


def cross_block(**options: Any) -> ModulatedTransformerCrossBlock:
    block: ModulatedTransformerCrossBlock = make(
        ModulatedTransformerCrossBlock, CHANNELS, CONTEXT, HEADS, mlp_ratio=2, **options
    )
    return block


def inputs(share_mod: bool = False, cross: bool = False) -> list[Tensor]:
    width = 6 * CHANNELS if share_mod else CHANNELS
    rows = [tensor(BATCH, LENGTH, CHANNELS), tensor(BATCH, width, seed=1)]
    return [*rows, tensor(BATCH, 4, CONTEXT, seed=2)] if cross else rows


def attention_by_hand(
    attn: MultiHeadAttention, x: Tensor, context: Tensor | None = None, turn: Tensor | None = None
) -> Tensor:
    """Softmax attention head by head, as written in the paper."""
    if context is None:
        query, key, value = attn.to_qkv(x).chunk(3, dim=-1)
    else:
        query, (key, value) = attn.to_q(x), attn.to_kv(context).chunk(2, dim=-1)
    width = x.shape[-1] // attn.num_heads
    out = []
    for head in range(attn.num_heads):
        q, k, v = (t[..., head * width : (head + 1) * width] for t in (query, key, value))
        if attn.qk_rms_norm:
            q = q / q.norm(dim=-1, keepdim=True) * attn.q_rms_norm.gamma[head] * width**0.5
            k = k / k.norm(dim=-1, keepdim=True) * attn.k_rms_norm.gamma[head] * width**0.5
        if turn is not None:
            q, k = (
                torch.view_as_real(torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2)) * turn)
                for t in (q, k)
            )
            q, k = q.flatten(-2), k.flatten(-2)
        out.append((q @ k.transpose(-1, -2) / width**0.5).softmax(-1) @ v)
    return attn.to_out(torch.cat(out, dim=-1))


def plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


@pytest.mark.parametrize("qk_rms_norm", [False, True])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_attention_is_softmax_attention(qk_rms_norm: bool, qkv_bias: bool) -> None:
    options = {"qk_rms_norm": qk_rms_norm, "qkv_bias": qkv_bias}
    x, context = tensor(BATCH, LENGTH, CHANNELS).double(), tensor(BATCH, 4, CONTEXT).double()

    attn = make(MultiHeadAttention, CHANNELS, HEADS, **options).double()
    torch.testing.assert_close(attn(x), attention_by_hand(attn, x))
    assert (attn.to_qkv.bias is not None) is qkv_bias
    assert attn.to_out.bias is not None

    rope = make(MultiHeadAttention, CHANNELS, HEADS, use_rope=True, **options).double()
    turn = phases().to(torch.complex128)
    expected = attention_by_hand(rope, x, turn=turn)
    torch.testing.assert_close(rope(x, phases=turn), expected)
    torch.testing.assert_close(rope(x, phases=turn.expand(BATCH, -1, -1)), expected)
    assert not torch.allclose(rope(x, phases=turn), attention_by_hand(rope, x))

    cross = make(MultiHeadAttention, CHANNELS, HEADS, CONTEXT, type="cross", **options).double()
    torch.testing.assert_close(cross(x, context), attention_by_hand(cross, x, context))


def test_phases_without_rope_have_no_effect() -> None:
    attn, x = make(MultiHeadAttention, CHANNELS, HEADS), tensor(BATCH, LENGTH, CHANNELS)

    assert torch.equal(attn(x, phases=phases()), attn(x))


@pytest.mark.parametrize("share_mod", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_the_equations(share_mod: bool, cross: bool) -> None:
    block = (cross_block if cross else self_block)(share_mod=share_mod).double()
    x, mod, *context = (t.double() for t in inputs(share_mod, cross))

    out = block(x, mod, *context)

    if share_mod:
        six = block.modulation + mod
    else:
        six = block.adaLN_modulation[1](F.silu(mod))
    shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = six.unsqueeze(1).chunk(6, -1)
    attn = block.self_attn if cross else block.attn
    h = x + gate_msa * attention_by_hand(attn, plain_norm(x) * (1 + scale_msa) + shift_msa)
    if cross:
        h = h + attention_by_hand(block.cross_attn, block.norm2(h), context[0])
    hidden = block.mlp.mlp[0](plain_norm(h) * (1 + scale_mlp) + shift_mlp)
    h = h + gate_mlp * block.mlp.mlp[2](F.gelu(hidden, approximate="tanh"))
    torch.testing.assert_close(out, h)


@pytest.mark.parametrize("cross", [False, True])
def test_zero_gates_leave_only_what_is_not_gated(cross: bool) -> None:
    block = (cross_block if cross else self_block)()
    nn.init.zeros_(block.adaLN_modulation[1].weight)
    nn.init.zeros_(block.adaLN_modulation[1].bias)
    x, mod, *context = inputs(cross=cross)

    out = block(x, mod, *context)

    expected = x + block.cross_attn(block.norm2(x), *context) if cross else x
    assert torch.equal(out, expected)


@pytest.mark.parametrize("cross", [False, True])
def test_shared_modulation_is_the_same_six_vectors(cross: bool) -> None:
    make_block = cross_block if cross else self_block
    own, shared = make_block(), make_block(share_mod=True)
    state = {k: v for k, v in own.state_dict().items() if not k.startswith("adaLN")}
    shared.load_state_dict({**state, "modulation": torch.zeros(6 * CHANNELS)})
    x, mod, *context = inputs(cross=cross)

    assert torch.equal(shared(x, own.adaLN_modulation(mod), *context), own(x, mod, *context))


def test_state_keys() -> None:
    modulation = {"adaLN_modulation.1.weight", "adaLN_modulation.1.bias"}
    mlp = {f"mlp.mlp.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}

    def linear(*names: str) -> set[str]:
        return {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}

    attn = linear("attn.to_qkv", "attn.to_out")
    assert set(self_block().state_dict()) == modulation | mlp | attn
    assert set(self_block(share_mod=True).state_dict()) == {"modulation"} | mlp | attn
    assert set(cross_block(qk_rms_norm=True, qk_rms_norm_cross=True).state_dict()) == (
        modulation
        | mlp
        | linear("norm2", "self_attn.to_qkv", "self_attn.to_out")
        | linear("cross_attn.to_q", "cross_attn.to_kv", "cross_attn.to_out")
        | {f"{a}.{n}_rms_norm.gamma" for a in ("self_attn", "cross_attn") for n in "qk"}
    )
    assert self_block(share_mod=True).modulation.shape == (6 * CHANNELS,)
    assert set(dict(FeedForwardNet(4).named_parameters())) == {n[4:] for n in mlp}
    assert FeedForwardNet(5, 2.5).mlp[0].out_features == 12


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("share_mod", [False, True])
@pytest.mark.parametrize("use_rope", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_checkpointing_changes_nothing(
    cross: bool, use_rope: bool, share_mod: bool, autocast: bool
) -> None:
    options = {"share_mod": share_mod, "use_rope": use_rope, "qk_rms_norm": use_rope}
    block = (cross_block if cross else self_block)(**options)
    keywords = {"phases": phases()} if use_rope else {}

    assert_twins_agree(block, *inputs(share_mod, cross), autocast=autocast, **keywords)


def test_arguments_pass_the_boundary_by_keyword() -> None:
    x, mod, context = inputs(cross=True)

    assert_twins_agree(cross_block(), x=x, mod=mod, context=context)


@pytest.mark.parametrize("cross", [False, True])
def test_gradients_are_those_of_finite_differences(cross: bool) -> None:
    block = (cross_block if cross else self_block)(qk_rms_norm=True, use_checkpoint=True).double()
    arguments = [t.double()[..., :3, :] if t.ndim == 3 else t.double() for t in inputs(cross=cross)]

    assert torch.autograd.gradcheck(block, [t.requires_grad_() for t in arguments])


def test_checkpointing_keeps_less() -> None:
    x, mod = (t.requires_grad_() for t in inputs())

    # The input of the block and its conditioning are all that is left.
    assert bytes_kept(self_block(use_checkpoint=True), x, mod) == x.nbytes + mod.nbytes
    assert bytes_kept(self_block(), x, mod) > 5 * (x.nbytes + mod.nbytes)


def test_samples_do_not_mix() -> None:
    block = cross_block()
    x, mod, context = inputs(cross=True)

    both = block(x, mod, context)

    for b in range(BATCH):
        torch.testing.assert_close(
            both[b : b + 1], block(x[b][None], mod[b][None], context[b][None])
        )


def test_half_weights() -> None:
    block = self_block(share_mod=True).bfloat16()
    fill_zeros(block)

    out = block(*(t.bfloat16() for t in inputs(share_mod=True)))

    assert out.dtype == torch.bfloat16
    expected = block.float()(*(t.bfloat16().float() for t in inputs(share_mod=True)))
    torch.testing.assert_close(out.float(), expected, rtol=0.1, atol=0.1)


X, MOD, CTX = inputs(cross=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ModulatedTransformerBlock(10, 4), ValueError, "channels=10.*num_heads=4"),
        (lambda: ModulatedTransformerBlock(0, 4), ValueError, "channels.*got 0"),
        (lambda: ModulatedTransformerBlock(8, 2.0), TypeError, "num_heads.*2.0"),
        (lambda: ModulatedTransformerBlock(8, 2, mlp_ratio=0.1), ValueError, "mlp_ratio=0.1"),
        (lambda: ModulatedTransformerBlock(8, 2, mlp_ratio="4"), TypeError, "mlp_ratio.*'4'"),
        (lambda: self_block(attn_mode="windowed"), ValueError, "attn_mode.*'windowed'"),
        (lambda: ModulatedTransformerBlock(6, 2, use_rope=True), ValueError, "heads of 3"),
        (lambda: ModulatedTransformerCrossBlock(8, 0, 2), ValueError, "ctx_channels.*got 0"),
        (lambda: MultiHeadAttention(8, 2, type="both"), ValueError, "type.*'both'"),
        (lambda: self_block()(X[0], MOD), ValueError, r"x .*\(B, L, 24\), got \(5, 24\)"),
        (lambda: self_block()(X[..., :8], MOD), ValueError, r"\(2, 5, 8\)"),
        (lambda: self_block()(X.int(), MOD), TypeError, "int32"),
        (lambda: self_block()(X.tolist(), MOD), TypeError, "list"),
        (lambda: self_block()(X, MOD[:1]), ValueError, r"mod .*\(2, 24\), got \(1, 24\)"),
        (lambda: self_block(share_mod=True)(X, MOD), ValueError, r"mod .*\(2, 144\)"),
        (lambda: self_block(use_rope=True)(X, MOD), ValueError, "use_rope=True needs phases"),
        (lambda: self_block(use_rope=True)(X, MOD, X), TypeError, "complex.*float32"),
        (lambda: self_block(use_rope=True)(X, MOD, phases(4)), ValueError, r"got \(4, 6\)"),
        (lambda: cross_block()(X, MOD, CTX[:1]), ValueError, r"context .*\(2, L_c, 10\)"),
        (lambda: cross_block()(X, MOD, CTX[0]), ValueError, r"context .*got \(4, 10\)"),
        (lambda: cross_block()(X, MOD, None), ValueError, "needs context"),
        (lambda: MultiHeadAttention(24, 2)(X, CTX), ValueError, "self-attention takes no context"),
    ],
)
def test_refuses(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
