"""Modulated transformer blocks on dense tokens (diffusion transformers, DiT).

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023. Each block is a checkpoint
boundary; conditioning, context and phases are made outside and passed in.
"""

from __future__ import annotations

from torch import Tensor, nn

from wcn_ckpt.nn.modules.arguments import check_tensor
from wcn_ckpt.nn.modules.checks import hidden_width
from wcn_ckpt.nn.modules.dit_attention import MultiHeadAttention, check_context, check_phases
from wcn_ckpt.nn.modules.modulated_block import ModulatedBlock, ModulatedCrossBlock
from wcn_ckpt.nn.modules.modulation import Modulation, modulate

__all__ = [
    "FeedForwardNet",
    "ModulatedTransformerBlock",
    "ModulatedTransformerCrossBlock",
    "MultiHeadAttention",
]


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


class ModulatedTransformerBlock(ModulatedBlock):
    """Modulated self-attention and feed-forward network; a checkpoint boundary.

    `x += gate_msa * attn(modulate(norm1(x)))`, then `x += gate_mlp * mlp(modulate(norm2(x)))`.

    The arguments are those of `wcn_ckpt.nn.modules.modulated_block.ModulatedBlock`.
    """

    attention_class = MultiHeadAttention
    network_class = FeedForwardNet

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


class ModulatedTransformerCrossBlock(ModulatedCrossBlock):
    """As `ModulatedTransformerBlock`, with attention to a context in between; a boundary.

    The attention to the context is neither modulated nor gated: `x += cross_attn(norm2(x))`.

    The arguments are those of `wcn_ckpt.nn.modules.modulated_block.ModulatedCrossBlock`.
    """

    attention_class = MultiHeadAttention
    network_class = FeedForwardNet

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
