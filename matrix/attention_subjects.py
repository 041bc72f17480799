"""The blocks and models of Point Transformer V3 and SpaCeFormer."""

from __future__ import annotations

from typing import Any

from matrix.subject import NO_BATCH_NORM, Subject

_OPTIONS = ("dropout", "order", "sites")


def _block(name: str, cls: str, fixed_order: str, doc: str, **arguments: Any) -> Subject:
    return Subject(
        name=name,
        factory="matrix.builders:attention_block",
        arguments={
            "of": f"wcn_ckpt.nn.modules:{cls}",
            "fixed_order": fixed_order,
            "in_channels": 6,
            "attention_channels": 8,
            "num_heads": 2,
            "mlp_ratio": 2.0,
            **arguments,
        },
        inputs="matrix.batches:terrain_batch",
        input_arguments={"channels": 6, "crop": 8},
        options=_OPTIONS,
        narrowings=(NO_BATCH_NORM,),
        doc=doc,
    )


def _model(name: str, cls: str, doc: str, **arguments: Any) -> Subject:
    return Subject(
        name=name,
        factory="matrix.builders:awake",
        arguments={
            "of": f"wcn_ckpt.models:{cls}",
            "in_channels": 4,
            "out_channels": 3,
            "mlp_ratio": 2.0,
            "drop_path": 0.0,
            "shuffle_orders": False,
            **arguments,
        },
        inputs="matrix.batches:terrain_batch",
        input_arguments={"channels": 4, "crop": 8},
        kind="model",
        buffers_follow_data=True,
        options=_OPTIONS,
        doc=doc,
    )


ATTENTION_SUBJECTS: tuple[Subject, ...] = (
    _block(
        "patch-attention",
        "PatchAttentionBlock",
        "hilbert",
        "the block of Point Transformer V3, along a curve",
        patch_size=12,
    ),
    _block(
        "pre-norm",
        "PreNormBlock",
        "xyz",
        "SpaCeFormer block with norms at the head of each branch, in windows, with rotations",
        patch_size=4,
        attn_type="space",
        use_rope=True,
    ),
    _block(
        "post-norm",
        "PostNormBlock",
        "morton_zyx",
        "SpaCeFormer block with norms behind each sum, along a curve",
        patch_size=12,
        attn_type="curve",
    ),
    _block(
        "stream-norm",
        "StreamNormBlock",
        "zero",
        "SpaCeFormer block with norms on the stream, in whole clouds",
        patch_size=1,
        attn_type="all",
    ),
    _model(
        "ptv3",
        "PointTransformerV3",
        "a whole Point Transformer V3 of two levels",
        enc_depths=(1, 1),
        enc_channels=(8, 16),
        enc_num_head=(2, 4),
        enc_patch_size=(16, 16),
        dec_depths=(1,),
        dec_channels=(8,),
        dec_num_head=(2,),
        dec_patch_size=(16,),
    ),
    _model(
        "spaceformer",
        "SpaCeFormer",
        "a whole SpaCeFormer of three levels: windows, curves and whole clouds",
        enc_depths=(1, 1, 1),
        enc_channels=(8, 8, 16),
        enc_num_head=(2, 2, 2),
        enc_patch_size=(4, 8, 8),
        enc_attn_types="sca",
        dec_depths=(1, 1),
        dec_channels=(8, 8),
        dec_num_head=(2, 2),
        dec_patch_size=(4, 8),
        dec_attn_types="sc",
        use_rope=True,
    ),
)
"""The subjects of these families."""
