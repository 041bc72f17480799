"""Modulated transformer blocks on voxels (sparse diffusion transformers).

The equations are those of `wcn_ckpt.nn.modules.dit`, on the voxels of each cloud. Each block is a
checkpoint boundary; conditioning and context are made outside and passed in.
"""

from __future__ import annotations

from torch import Tensor

from wcn_ckpt.geometry import Geometry, Voxels
from wcn_ckpt.nn.modules.arguments import check_geometry
from wcn_ckpt.nn.modules.base import G, SpatialModule
from wcn_ckpt.nn.modules.dit import FeedForwardNet
from wcn_ckpt.nn.modules.modulated_block import ModulatedBlock, ModulatedCrossBlock
from wcn_ckpt.nn.modules.modulation import Modulation, modulate
from wcn_ckpt.nn.modules.normalizations import LayerNorm32
from wcn_ckpt.nn.modules.sparse_dit_attention import (
    SparseMultiHeadAttention,
    check_sparse_context,
)


class SparseFeedForwardNet(FeedForwardNet, SpatialModule):
    """`FeedForwardNet` on the features of voxels."""

    def forward(self, x: G) -> G:  # type: ignore[override]  # voxels, not tensors
        """Return the same rows with new features (N, C).

        Raises:
            TypeError: `x` is no geometry, or its features are not floating point.
            ValueError: it has other channels.
        """
        check_geometry(self, x, self.channels)
        return x.replace_features(super().forward(x.feature_tensor))


class ModulatedSparseTransformerBlock(ModulatedBlock, SpatialModule):
    """`ModulatedTransformerBlock` on voxels; a checkpoint boundary.

    The arguments are those of `wcn_ckpt.nn.modules.modulated_block.ModulatedBlock`. `use_rope`
    rotates queries and keys by the coordinates of their voxels, with the frequencies `rope_freq`;
    an `attn_mode` other than `"full"` raises NotImplementedError, which is also a ValueError.
    """

    attention_class = SparseMultiHeadAttention
    network_class = SparseFeedForwardNet

    def forward(self, x: G, mod: Tensor) -> G:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: voxels with C channels in B clouds; without `use_rope` also points.
            mod: (B, C), or (B, 6 C) with `share_mod`.

        Returns:
            The same voxels, C channels.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: channels or clouds do not fit.
        """
        check_geometry(self, x, self.channels)
        self.check_mod(mod, x.batch_size)
        out: G = self._gradient_checkpointed_call(self._forward, x, mod)
        return out

    def _forward(self, x: G, mod: Tensor) -> G:
        m = _per_voxel(self.six_vectors(mod), x)
        h: G = self.attn(_modulated(x, self.norm1, m.shift_msa, m.scale_msa))
        x = _gated(x, h, m.gate_msa)
        h = self.mlp(_modulated(x, self.norm2, m.shift_mlp, m.scale_mlp))
        return _gated(x, h, m.gate_mlp)


class ModulatedSparseTransformerCrossBlock(ModulatedCrossBlock, SpatialModule):
    """`ModulatedTransformerCrossBlock` on voxels; a checkpoint boundary.

    The arguments are those of `wcn_ckpt.nn.modules.modulated_block.ModulatedCrossBlock`. `use_rope`
    rotates queries and keys of the self-attention by the coordinates of their voxels, with the
    frequencies `rope_freq`; an `attn_mode` other than `"full"` raises NotImplementedError, which is
    also a ValueError.
    """

    attention_class = SparseMultiHeadAttention
    network_class = SparseFeedForwardNet

    def forward(self, x: G, mod: Tensor, context: Tensor | Voxels) -> G:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: voxels with C channels in B clouds; without `use_rope` also points.
            mod: (B, C), or (B, 6 C) with `share_mod`.
            context: (B, L_c, ctx_channels), or voxels with `ctx_channels` channels in B clouds.

        Returns:
            The same voxels, C channels.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: channels or clouds do not fit.
        """
        check_geometry(self, x, self.channels)
        check_sparse_context(self, context, x.batch_size, self.ctx_channels)
        self.check_mod(mod, x.batch_size)
        out: G = self._gradient_checkpointed_call(self._forward, x, mod, context)
        return out

    def _forward(self, x: G, mod: Tensor, context: Tensor | Voxels) -> G:
        m = _per_voxel(self.six_vectors(mod), x)
        h: G = self.self_attn(_modulated(x, self.norm1, m.shift_msa, m.scale_msa))
        x = _gated(x, h, m.gate_msa)
        normed = x.replace_features(self.norm2(x.feature_tensor))
        x = x + self.cross_attn(normed, context)
        h = self.mlp(_modulated(x, self.norm3, m.shift_mlp, m.scale_mlp))
        return _gated(x, h, m.gate_mlp)


def _per_voxel(six: Tensor, x: Geometry) -> Modulation:
    """Return six vectors (N, C), each voxel those of its cloud."""
    rows = six.index_select(0, x.batched_coordinates.batch_indices)
    return Modulation(*rows.chunk(6, dim=-1))


def _modulated(x: G, norm: LayerNorm32, shift: Tensor, scale: Tensor) -> G:
    return x.replace_features(modulate(norm(x.feature_tensor), shift, scale))


def _gated(x: G, h: G, gate: Tensor) -> G:
    return x.replace_features(x.feature_tensor + h.feature_tensor * gate)
