"""Modulated transformer blocks on dense tokens (diffusion transformers, DiT).

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023. Each block is a checkpoint
boundary; conditioning, context and phases are made outside and passed in.
"""

from __future__ import annotations

from torch import Tensor, nn

from wcn_ckpt.checkpointing import GradientCheckpointingMixin
from wcn_ckpt.nn.modules.arguments import check_tensor, hidden_width
from wcn_ckpt.nn.modules.dit_attention import MultiHeadAttention, check_context, check_phases
from wcn_ckpt.nn.modules.modulation import ModulatedModule, Modulation, modulate
from wcn_ckpt.nn.modules.normalizations import LayerNorm32

__all__ = [
    "FeedForwardNet",
    "ModulatedTransformerBlock",
    "ModulatedTransformerCrossBlock",
    "MultiHeadAttention",
]

NORM_EPS = 1e-6


class FeedForwardNet(nn.Module):
    """Two linear layers with a GELU (tanh form) between them.

    Args:
        channels: channels C of the input and the output.
        mlp_ratio: channels in between, as a multiple of C.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: a number is not positive, or no channel is left in between.
    """

    def __init__(self, channels: int, mlp_ratio: float = 4.0) -> None:
        """See the class."""
        super().__init__()
        hidden = hidden_width(channels, mlp_ratio)
        self.channels = channels
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., C) for (..., C)."""
        out: Tensor = self.mlp(x)
        return out


class ModulatedTransformerBlock(GradientCheckpointingMixin, ModulatedModule):
    """Modulated self-attention and feed-forward network; a checkpoint boundary.

    `x += gate_msa * attn(modulate(norm1(x)))`, then `x += gate_mlp * mlp(modulate(norm2(x)))`.

    Args:
        channels: channels C.
        num_heads: number of heads; divides C.
        mlp_ratio: width of the feed-forward network as a multiple of C.
        attn_mode: `"full"`.
        use_checkpoint: whether the block starts with checkpointing enabled.
        use_rope: whether attention rotates queries and keys by phases.
        rope_freq: without effect; the phases come from outside.
        qk_rms_norm: whether queries and keys are normalized.
        qkv_bias: whether queries, keys and values have a bias.
        share_mod: whether `mod` holds the six vectors already, made by a layer that all blocks
            share; the block then adds its parameter `modulation`.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: C is not divisible by the heads, a number is not positive, or a name is
            unknown.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        attn_mode: str = "full",
        use_checkpoint: bool = False,
        use_rope: bool = False,
        rope_freq: tuple[float, float] = (1.0, 10000.0),
        qk_rms_norm: bool = False,
        qkv_bias: bool = True,
        share_mod: bool = False,
    ) -> None:
        """See the class."""
        super().__init__(channels, share_mod)
        self._init_gradient_checkpointing(use_checkpoint)
        self.num_heads, self.use_rope = num_heads, use_rope
        self.norm1 = LayerNorm32(channels, elementwise_affine=False, eps=NORM_EPS)
        self.norm2 = LayerNorm32(channels, elementwise_affine=False, eps=NORM_EPS)
        self.attn = MultiHeadAttention(
            channels,
            num_heads,
            attn_mode=attn_mode,
            qkv_bias=qkv_bias,
            use_rope=use_rope,
            rope_freq=rope_freq,
            qk_rms_norm=qk_rms_norm,
        )
        self.mlp = FeedForwardNet(channels, mlp_ratio)

    def forward(self, x: Tensor, mod: Tensor, phases: Tensor | None = None) -> Tensor:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: (B, L, C).
            mod: (B, C), or (B, 6 C) with `share_mod`.
            phases: (L, d / 2) or (B, L, d / 2), complex; needed with `use_rope`.

        Returns:
            (B, L, C).

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is missing or of another shape.
        """
        check_tensor(self, x, ("B", "L", self.channels))
        if self.use_rope:
            check_phases(x, phases, self.channels // self.num_heads)
        self.check_mod(mod, len(x))
        out: Tensor = self._gradient_checkpointed_call(self._forward, x, mod, phases)
        return out

    def _forward(self, x: Tensor, mod: Tensor, phases: Tensor | None) -> Tensor:
        m = _per_sample(self.six_vectors(mod))
        h: Tensor = self.attn(modulate(self.norm1(x), m.shift_msa, m.scale_msa), phases=phases)
        x = x + h * m.gate_msa
        h = self.mlp(modulate(self.norm2(x), m.shift_mlp, m.scale_mlp))
        return x + h * m.gate_mlp


class ModulatedTransformerCrossBlock(GradientCheckpointingMixin, ModulatedModule):
    """As `ModulatedTransformerBlock`, with attention to a context in between; a boundary.

    The attention to the context is neither modulated nor gated: `x += cross_attn(norm2(x))`.

    Args:
        channels: channels C.
        ctx_channels: channels of the context.
        num_heads: number of heads; divides C.
        mlp_ratio: width of the feed-forward network as a multiple of C.
        attn_mode: `"full"`.
        use_checkpoint: whether the block starts with checkpointing enabled.
        use_rope: whether self-attention rotates queries and keys by phases.
        rope_freq: without effect; the phases come from outside.
        qk_rms_norm: whether queries and keys of the self-attention are normalized.
        qk_rms_norm_cross: the same for the attention to the context.
        qkv_bias: whether queries, keys and values have a bias.
        share_mod: as in `ModulatedTransformerBlock`.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: C is not divisible by the heads, a number is not positive, or a name is
            unknown.
    """

    def __init__(
        self,
        channels: int,
        ctx_channels: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        attn_mode: str = "full",
        use_checkpoint: bool = False,
        use_rope: bool = False,
        rope_freq: tuple[float, float] = (1.0, 10000.0),
        qk_rms_norm: bool = False,
        qk_rms_norm_cross: bool = False,
        qkv_bias: bool = True,
        share_mod: bool = False,
    ) -> None:
        """See the class."""
        super().__init__(channels, share_mod)
        self._init_gradient_checkpointing(use_checkpoint)
        self.ctx_channels, self.num_heads, self.use_rope = ctx_channels, num_heads, use_rope
        self.norm1 = LayerNorm32(channels, elementwise_affine=False, eps=NORM_EPS)
        self.norm2 = LayerNorm32(channels, elementwise_affine=True, eps=NORM_EPS)
        self.norm3 = LayerNorm32(channels, elementwise_affine=False, eps=NORM_EPS)
        self.self_attn = MultiHeadAttention(
            channels,
            num_heads,
            attn_mode=attn_mode,
            qkv_bias=qkv_bias,
            use_rope=use_rope,
            rope_freq=rope_freq,
            qk_rms_norm=qk_rms_norm,
        )
        self.cross_attn = MultiHeadAttention(
            channels,
            num_heads,
            ctx_channels=ctx_channels,
            type="cross",
            attn_mode="full",
            qkv_bias=qkv_bias,
            qk_rms_norm=qk_rms_norm_cross,
        )
        self.mlp = FeedForwardNet(channels, mlp_ratio)

    def forward(
        self, x: Tensor, mod: Tensor, context: Tensor, phases: Tensor | None = None
    ) -> Tensor:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: (B, L, C).
            mod: (B, C), or (B, 6 C) with `share_mod`.
            context: (B, L_c, ctx_channels).
            phases: (L, d / 2) or (B, L, d / 2), complex; needed with `use_rope`.

        Returns:
            (B, L, C).

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is missing or of another shape.
        """
        check_tensor(self, x, ("B", "L", self.channels))
        check_context(self, context, len(x), self.ctx_channels)
        if self.use_rope:
            check_phases(x, phases, self.channels // self.num_heads)
        self.check_mod(mod, len(x))
        out: Tensor = self._gradient_checkpointed_call(self._forward, x, mod, context, phases)
        return out

    def _forward(self, x: Tensor, mod: Tensor, context: Tensor, phases: Tensor | None) -> Tensor:
        m = _per_sample(self.six_vectors(mod))
        h: Tensor = self.self_attn(modulate(self.norm1(x), m.shift_msa, m.scale_msa), phases=phases)
        x = x + h * m.gate_msa
        x = x + self.cross_attn(self.norm2(x), context)
        h = self.mlp(modulate(self.norm3(x), m.shift_mlp, m.scale_mlp))
        return x + h * m.gate_mlp


def _per_sample(six: Tensor) -> Modulation:
    """Return six vectors (B, 1, C), which broadcast over tokens."""
    return Modulation(*six.unsqueeze(1).chunk(6, dim=-1))
