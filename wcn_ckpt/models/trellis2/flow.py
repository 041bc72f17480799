"""What the dense and the sparse flow model share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from wcn_ckpt.checkpointing import GradientCheckpointingModelMixin
from wcn_ckpt.geometry.autocast import autocast_dtype
from wcn_ckpt.models.trellis2.precision import cast_matrix_layers, matrix_dtype, str_to_dtype
from wcn_ckpt.nn.modules.arguments import check_tensor
from wcn_ckpt.nn.modules.checks import check_count, check_heads
from wcn_ckpt.nn.modules.embeddings import TimestepEmbedder
from wcn_ckpt.nn.modules.modulation import modulation_layer
from wcn_ckpt.nn.modules.sparse_conv import check_positive

PositionMode = Literal["ape", "rope"]


class FlowModel(GradientCheckpointingModelMixin, nn.Module):
    """Blocks of a diffusion transformer between two linear layers, with an embedding of time.

    Every block is a checkpoint boundary; embeddings, the layer of a shared modulation and the
    layers at both ends are outside. Subclasses name the class of their blocks and encode positions.

    Args:
        resolution: cells along each axis of the grid.
        in_channels: channels of the input.
        model_channels: channels of the blocks.
        cond_channels: channels of the condition.
        out_channels: channels of the output.
        num_blocks: number of blocks.
        num_heads: heads of the attention; `model_channels // num_head_channels` by default.
        num_head_channels: channels per head, where `num_heads` is not given.
        mlp_ratio: width of the feed-forward networks as a multiple of `model_channels`.
        pe_mode: `"ape"` adds sinusoids to the input of the blocks, `"rope"` rotates queries and
            keys.
        rope_freq: frequencies of the rotation.
        dtype: dtype that the blocks compute in, such as `"bfloat16"`.
        use_checkpoint: whether the blocks start with checkpointing enabled.
        share_mod: whether one layer makes the modulation of all blocks.
        initialization: kept, without effect.
        qk_rms_norm: whether self-attention normalizes queries and keys.
        qk_rms_norm_cross: the same for the attention to the condition.
        **kwargs: accepted for configurations of other versions, without effect.

    Raises:
        KeyError: the dtype is unknown; also a ValueError.
        TypeError: a size is no integer.
        ValueError: a size is not positive or not divisible, or `pe_mode` is unknown.
    """

    block_class: ClassVar[Callable[..., nn.Module]]

    def __init__(
        self,
        resolution: int,
        in_channels: int,
        model_channels: int,
        cond_channels: int,
        out_channels: int,
        num_blocks: int,
        num_heads: int | None = None,
        num_head_channels: int = 64,
        mlp_ratio: float = 4.0,
        pe_mode: PositionMode = "ape",
        rope_freq: tuple[float, float] = (1.0, 10000.0),
        dtype: str | torch.dtype = "float32",
        use_checkpoint: bool = False,
        share_mod: bool = False,
        initialization: str = "vanilla",
        qk_rms_norm: bool = False,
        qk_rms_norm_cross: bool = False,
        **kwargs: Any,
    ) -> None:
        """See the class."""
        super().__init__()
        for name, value in (
            ("resolution", resolution),
            ("in_channels", in_channels),
            ("model_channels", model_channels),
            ("cond_channels", cond_channels),
            ("out_channels", out_channels),
            ("num_head_channels", num_head_channels),
        ):
            check_positive(value, name)
        check_count(num_blocks, "num_blocks")
        if num_heads is None and num_head_channels > model_channels:
            raise ValueError(
                f"model_channels={model_channels} leaves no head of "
                f"num_head_channels={num_head_channels}; pass num_heads"
            )
        if pe_mode not in ("ape", "rope"):
            raise ValueError(f"pe_mode must be 'ape' or 'rope', got {pe_mode!r}")
        block_dtype = str_to_dtype(dtype)
        self.resolution = resolution
        self.in_channels = in_channels
        self.model_channels = model_channels
        self.cond_channels = cond_channels
        self.out_channels = out_channels
        self.num_blocks = num_blocks
        self.num_heads = model_channels // num_head_channels if num_heads is None else num_heads
        check_heads(model_channels, self.num_heads)
        self.mlp_ratio = mlp_ratio
        self.pe_mode: PositionMode = pe_mode
        self.rope_freq = rope_freq
        self.share_mod = share_mod
        self.initialization = initialization
        self.qk_rms_norm = qk_rms_norm
        self.qk_rms_norm_cross = qk_rms_norm_cross
        self.t_embedder = TimestepEmbedder(model_channels)
        if share_mod:
            self.adaLN_modulation = modulation_layer(model_channels)
        self.input_layer = nn.Linear(in_channels, model_channels)
        self.blocks = nn.ModuleList(
            self.block_class(
                model_channels,
                cond_channels,
                num_heads=self.num_heads,
                mlp_ratio=mlp_ratio,
                attn_mode="full",
                use_checkpoint=use_checkpoint,
                use_rope=pe_mode == "rope",
                rope_freq=rope_freq,
                qk_rms_norm=qk_rms_norm,
                qk_rms_norm_cross=qk_rms_norm_cross,
                share_mod=share_mod,
            )
            for _ in range(num_blocks)
        )
        self.out_layer = nn.Linear(model_channels, out_channels)
        self.convert_to(block_dtype)
        self._add_position_encoding()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the blocks compute in."""
        return matrix_dtype(self.blocks, self.input_layer.weight.dtype)

    def convert_to(self, dtype: str | torch.dtype) -> None:
        """Cast linear layers of the blocks; norms and learned offsets keep their dtype.

        Raises:
            KeyError: the name is unknown; also a ValueError.
        """
        cast_matrix_layers(self.blocks, str_to_dtype(dtype))

    def time_and_condition(self, t: Tensor, cond: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return the modulation of all blocks and the condition, in the dtype of the blocks.

        Args:
            t: (B,) times.
            cond: (B, L_c, cond_channels).
            batch_size: number of samples B.

        Raises:
            TypeError: an argument is no tensor, or `cond` is not floating point.
            ValueError: a shape is another one.
        """
        check_tensor(self, cond, (batch_size, "L_c", self.cond_channels), "cond")
        if not isinstance(t, Tensor):
            raise TypeError(f"t must be a tensor with one time per sample, got {type(t).__name__}")
        if t.shape != (batch_size,):
            raise ValueError(
                f"t must have shape ({batch_size},), one time per sample, got {tuple(t.shape)}"
            )
        mod = self.t_embedder(t)
        if self.share_mod:
            mod = self.adaLN_modulation(mod)
        return self.to_block_dtype(mod), self.to_block_dtype(cond)

    def _add_position_encoding(self) -> None:
        raise NotImplementedError

    def to_block_dtype(self, x: Any) -> Any:
        """Return a tensor in the dtype of the blocks; autocast casts by itself."""
        if autocast_dtype(self.input_layer.weight) is not None:
            return x
        return x.to(matrix_dtype(self.blocks, x.dtype))
