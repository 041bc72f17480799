"""Attention of dense transformer blocks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wcn_ckpt.nn.functional.rotary import rotate
from wcn_ckpt.nn.modules.arguments import check_tensor
from wcn_ckpt.nn.modules.checks import check_heads
from wcn_ckpt.nn.modules.normalizations import MultiHeadRMSNorm
from wcn_ckpt.nn.modules.sparse_conv import check_positive

AttentionType = Literal["self", "cross"]


class AttentionProjections(nn.Module):
    """The layers of multi-head attention, for self-attention or for attention to a context.

    Args:
        channels: channels C of the input and the output.
        num_heads: number of heads H; divides C.
        ctx_channels: channels of the context; C by default.
        type: `"self"` or `"cross"`.
        qkv_bias: whether queries, keys and values have a bias.
        use_rope: whether queries and keys are rotated; never in cross-attention.
        rope_freq: frequencies of the rotation.
        qk_rms_norm: whether queries and keys are normalized, head by head.

    Raises:
        TypeError: a number is no integer.
        ValueError: C is not divisible by H, a number is not positive, heads that are to be rotated
            have an odd width, or the type is unknown.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        ctx_channels: int | None = None,
        type: AttentionType = "self",
        qkv_bias: bool = True,
        use_rope: bool = False,
        rope_freq: tuple[float, float] = (1.0, 10000.0),
        qk_rms_norm: bool = False,
    ) -> None:
        """See the class."""
        super().__init__()
        check_heads(channels, num_heads)
        if type not in ("self", "cross"):
            raise ValueError(f"type of attention must be 'self' or 'cross', got {type!r}")
        self.channels = channels
        self.num_heads = num_heads
        self.head_dim = channels // num_heads
        self.ctx_channels = channels if ctx_channels is None else ctx_channels
        check_positive(self.ctx_channels, "ctx_channels")
        if use_rope and type == "self" and self.head_dim % 2:
            raise ValueError(
                f"use_rope=True turns pairs of channels, but channels={channels} and "
                f"num_heads={num_heads} make heads of {self.head_dim}"
            )
        self._type = type
        self.use_rope = use_rope
        self.rope_freq = rope_freq
        self.qk_rms_norm = qk_rms_norm
        if type == "self":
            self.to_qkv = nn.Linear(channels, 3 * channels, bias=qkv_bias)
        else:
            self.to_q = nn.Linear(channels, channels, bias=qkv_bias)
            self.to_kv = nn.Linear(self.ctx_channels, 2 * channels, bias=qkv_bias)
        if qk_rms_norm:
            self.q_rms_norm = MultiHeadRMSNorm(self.head_dim, num_heads)
            self.k_rms_norm = MultiHeadRMSNorm(self.head_dim, num_heads)
        self.to_out = nn.Linear(channels, channels)

    @property
    def attends_to_context(self) -> bool:
        """Whether this is cross-attention."""
        return self._type == "cross"

    def project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (..., H, d), normalized where that is wanted."""
        if context is None:
            query, key, value = self._heads(self.to_qkv(x), 3)
        else:
            (query,) = self._heads(self.to_q(x), 1)
            key, value = self._heads(self.to_kv(context), 2)
        if self.qk_rms_norm:
            query, key = self.q_rms_norm(query), self.k_rms_norm(key)
        return query, key, value

    def merge(self, heads: Tensor) -> Tensor:
        """Return the output (..., C) of attended values (..., H, d)."""
        out: Tensor = self.to_out(heads.flatten(-2))
        return out

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.channels}, num_heads={self.num_heads}, type={self._type!r}"

    def _heads(self, rows: Tensor, parts: int) -> tuple[Tensor, ...]:
        shape = (*rows.shape[:-1], parts, self.num_heads, self.head_dim)
        return rows.reshape(shape).unbind(-3)


class MultiHeadAttention(AttentionProjections):
    """Multi-head attention over the tokens of each sample, or to a context.

    Args:
        channels: channels C.
        num_heads: number of heads H; divides C.
        ctx_channels: channels of the context; C by default.
        type: `"self"` or `"cross"`.
        attn_mode: `"full"`.
        qkv_bias: whether queries, keys and values have a bias.
        use_rope: whether self-attention rotates queries and keys by the phases it is given.
            Cross-attention never does.
        rope_freq: without effect; the phases come from outside.
        qk_rms_norm: whether queries and keys are normalized, head by head.

    Raises:
        TypeError: a number is no integer.
        ValueError: C is not divisible by H, a number is not positive, or a name is unknown.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        ctx_channels: int | None = None,
        type: AttentionType = "self",
        attn_mode: str = "full",
        qkv_bias: bool = True,
        use_rope: bool = False,
        rope_freq: tuple[float, float] = (1.0, 10000.0),
        qk_rms_norm: bool = False,
    ) -> None:
        """See the class."""
        super().__init__(
            channels, num_heads, ctx_channels, type, qkv_bias, use_rope, rope_freq, qk_rms_norm
        )
        if attn_mode != "full":
            raise ValueError(f"attn_mode must be 'full', got {attn_mode!r}")

    def forward(
        self, x: Tensor, context: Tensor | None = None, phases: Tensor | None = None
    ) -> Tensor:
        """Attend.

        Args:
            x: (B, L, C).
            context: (B, L_c, ctx_channels), for cross-attention.
            phases: (L, d / 2) or (B, L, d / 2), complex; for self-attention with `use_rope`,
                without effect otherwise.

        Returns:
            (B, L, C).

        Raises:
            TypeError: an argument is no floating point tensor, or phases are not complex.
            ValueError: an argument is missing, superfluous or of another shape.
        """
        check_tensor(self, x, ("B", "L", self.channels))
        if self.attends_to_context:
            check_context(self, context, len(x), self.ctx_channels)
        elif context is not None:
            raise ValueError(
                "self-attention takes no context; pass phases by keyword, "
                "or build the attention with type='cross'"
            )
        elif self.use_rope:
            check_phases(x, phases, self.head_dim)
        query, key, value = self.project(x, context)
        if self.use_rope and not self.attends_to_context and phases is not None:
            query, key = rotate(query, phases), rotate(key, phases)
        heads = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        )
        return self.merge(heads.transpose(1, 2))


def check_context(module: nn.Module, context: object, batch_size: int, channels: int) -> None:
    """Check a context (B, L_c, channels) that is attended to.

    Raises:
        TypeError: it is no floating point tensor.
        ValueError: it is missing or of another shape.
    """
    if context is None:
        raise ValueError(
            f"{type(module).__name__} needs context, a tensor ({batch_size}, L_c, {channels})"
        )
    check_tensor(module, context, (batch_size, "L_c", channels), "context")


def check_phases(x: Tensor, phases: object, head_dim: int) -> None:
    """Check phases (L, head_dim / 2) or (B, L, head_dim / 2) for tokens (B, L, C).

    Raises:
        TypeError: they are no complex tensor.
        ValueError: they are missing or of another shape.
    """
    if phases is None:
        raise ValueError(
            "use_rope=True needs phases, (L, d / 2) complex numbers; "
            "RotaryPositionEmbedder makes them from coordinates"
        )
    if not isinstance(phases, Tensor) or not phases.is_complex():
        kind = phases.dtype if isinstance(phases, Tensor) else type(phases).__name__
        raise TypeError(f"phases must be a complex tensor, got {kind}")
    shape = torch.Size((x.shape[1], head_dim // 2))
    if phases.shape not in (shape, torch.Size((len(x), *shape))):
        raise ValueError(
            f"phases must have shape {tuple(shape)} or {(len(x), *shape)}, "
            f"got {tuple(phases.shape)}"
        )
