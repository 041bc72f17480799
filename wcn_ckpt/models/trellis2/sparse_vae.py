"""What the sparse encoder and decoder share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wcn_ckpt.checkpointing import GradientCheckpointingModelMixin
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models.trellis2.precision import cast_matrix_layers, matrix_dtype
from wcn_ckpt.nn.modules.arguments import check_same_dtype, check_voxels
from wcn_ckpt.nn.modules.base import SpatialModule


class SparseVae(GradientCheckpointingModelMixin, SpatialModule):
    """What encoder and decoder share: stages in a dtype of their own between two linear layers."""

    blocks: nn.ModuleList

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the stages compute in."""
        return matrix_dtype(self.blocks, self._entry.weight.dtype)

    def convert_to_fp16(self) -> None:
        """Cast linear layers and convolutions of the stages to float16.

        Norms and the layers outside the stages keep their dtype.
        """
        cast_matrix_layers(self.blocks, torch.float16)

    @property
    def _entry(self) -> nn.Linear:
        """The layer before the stages."""
        raise NotImplementedError

    def _enter(self, x: Voxels) -> Voxels:
        """Check the input and bring it to the channels and the dtype of the stages."""
        check_voxels(self, x, self._entry.in_features)
        check_same_dtype(self, x.batched_features.tensor, self._entry.weight)
        h = self._entry(x.feature_tensor)
        return x.replace_features(h.to(matrix_dtype(self.blocks, h.dtype)))

    def _leave(self, h: Voxels, dtype: torch.dtype, layer: nn.Linear) -> Tensor:
        """Return the output features (N, C) of a last layer on normalized rows."""
        rows = h.batched_features.tensor.to(dtype)
        out: Tensor = layer(F.layer_norm(rows, rows.shape[-1:]))
        return out
