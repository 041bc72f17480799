"""The models, and which boundaries each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matrix.subjects import subject_named


@dataclass(frozen=True)
class Container:
    """A model, built in one way, and its boundaries."""

    factory: str
    """Importable name of its factory."""
    boundaries: Mapping[str, int] = field(hash=False)
    """Class name -> number of boundaries of that class."""
    rule: str
    """Where the number comes from."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the factory."""

    @property
    def name(self) -> str:
        """Name of the model's class."""
        return str(self.arguments.get("of", self.factory)).rpartition(":")[2]


_ENDS = {"in_channels": 4, "out_channels": 5}
_LAYERS = "sum of `layers`"
_DEPTHS = "sum of `enc_depths` and `dec_depths`"
_STAGES = "sum of `num_blocks`, and one between two stages"


def _mink(name: str, block: str, number: int) -> Container:
    return Container(f"wcn_ckpt.models:{name}", {block: number}, _LAYERS, _ENDS)


def _of_subject(name: str, boundaries: Mapping[str, int], rule: str) -> Container:
    subject = subject_named(name)
    return Container(subject.factory, boundaries, rule, subject.arguments)


CONTAINERS: tuple[Container, ...] = (
    _mink("MinkUNet14", "BasicBlock", 8),
    _mink("MinkUNet18", "BasicBlock", 16),
    _mink("MinkUNet34", "BasicBlock", 23),
    _mink("MinkUNet50", "BottleneckBlock", 23),
    _mink("MinkUNet101", "BottleneckBlock", 40),
    Container("wcn_ckpt.models:PointTransformerV3", {"PatchAttentionBlock": 22}, _DEPTHS),
    *(
        Container("wcn_ckpt.models:SpaCeFormer", {block: 22}, _DEPTHS, {"block_type": block_type})
        for block_type, block in (
            ("pre_norm", "PreNormBlock"),
            ("post_norm", "PostNormBlock"),
            ("stream_norm", "StreamNormBlock"),
        )
    ),
    *(
        _of_subject(name, {"SparseConvNeXtBlock3d": 2, resampling: 1}, _STAGES)
        for name, resampling in (
            ("vae-encoder", "SparseResBlockS2C3d"),
            ("vae-decoder", "SparseResBlockC2S3d"),
            ("dual-grid-encoder", "SparseResBlockS2C3d"),
            ("dual-grid-decoder", "SparseResBlockC2S3d"),
        )
    ),
    _of_subject("structure-flow", {"ModulatedTransformerCrossBlock": 2}, "`num_blocks`"),
    _of_subject("slat-flow", {"ModulatedSparseTransformerCrossBlock": 2}, "`num_blocks`"),
    *(
        Container(
            f"wcn_ckpt.models:SparseStructure{end}",
            {},
            "dense convolutions, no boundary",
            {
                name: 2,
                "latent_channels": 2,
                "num_res_blocks": 1,
                "channels": [32],
                "num_res_blocks_middle": 1,
            },
        )
        for end, name in (("Encoder", "in_channels"), ("Decoder", "out_channels"))
    ),
)
"""Every model of the guide, as it is by default where it has defaults."""
