"""What the dense and the sparse modulated blocks are made of."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from wcn_ckpt.checkpointing import GradientCheckpointingMixin
from wcn_ckpt.nn.modules.modulation import ModulatedModule
from wcn_ckpt.nn.modules.normalizations import LayerNorm32

NORM_EPS = 1e-6


class ModulatedBlock(GradientCheckpointingMixin, ModulatedModule):
    """Layers of a modulated block; a checkpoint boundary. Subclasses say on what they work.

    Args:
        channels: channels C.
        num_heads: number of heads; divides C.
        mlp_ratio: width of the feed-forward network as a multiple of C.
        attn_mode: `"full"`.
        use_checkpoint: whether the block starts with checkpointing enabled.
        use_rope: whether attention rotates queries and keys.
        rope_freq: frequencies of the rotation; without effect on dense tokens, whose phases come
            from outside.
        qk_rms_norm: whether queries and keys are normalized.
        qkv_bias: whether queries, keys and values have a bias.
        share_mod: whether `mod` holds the six vectors already, made by a layer that all blocks
            share; the block then adds its parameter `modulation`.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: C is not divisible by the heads, a number is not positive, or a name is
            unknown.
    """

    attention_class: ClassVar[type[nn.Module]]
    network_class: ClassVar[type[nn.Module]]

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
        self.attn = self.attention_class(
            channels,
            num_heads,
            attn_mode=attn_mode,
            qkv_bias=qkv_bias,
            use_rope=use_rope,
            rope_freq=rope_freq,
            qk_rms_norm=qk_rms_norm,
        )
        self.mlp = self.network_class(channels, mlp_ratio)


class ModulatedCrossBlock(GradientCheckpointingMixin, ModulatedModule):
    """Layers of a modulated block with a context; a checkpoint boundary.

    Args:
        channels: channels C.
        ctx_channels: channels of the context.
        num_heads: number of heads; divides C.
        mlp_ratio: width of the feed-forward network as a multiple of C.
        attn_mode: `"full"`.
        use_checkpoint: whether the block starts with checkpointing enabled.
        use_rope: whether self-attention rotates queries and keys.
        rope_freq: as in `ModulatedBlock`.
        qk_rms_norm: whether queries and keys of the self-attention are normalized.
        qk_rms_norm_cross: the same for the attention to the context.
        qkv_bias: whether queries, keys and values have a bias.
        share_mod: as in `ModulatedBlock`.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: C is not divisible by the heads, a number is not positive, or a name is
            unknown.
    """

    attention_class: ClassVar[type[nn.Module]]
    network_class: ClassVar[type[nn.Module]]

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
        self.self_attn = self.attention_class(
            channels,
            num_heads,
            attn_mode=attn_mode,
            qkv_bias=qkv_bias,
            use_rope=use_rope,
            rope_freq=rope_freq,
            qk_rms_norm=qk_rms_norm,
        )
        self.cross_attn = self.attention_class(
            channels,
            num_heads,
            ctx_channels=ctx_channels,
            type="cross",
            attn_mode="full",
            qkv_bias=qkv_bias,
            qk_rms_norm=qk_rms_norm_cross,
        )
        self.mlp = self.network_class(channels, mlp_ratio)
