"""The blocks and models of TRELLIS.2, and the blocks of diffusion transformers."""

from __future__ import annotations

from typing import Any

from matrix.subject import NO_BATCH_NORM, Subject

_FLOW: dict[str, Any] = {
    "resolution": 3,
    "in_channels": 4,
    "model_channels": 24,
    "cond_channels": 10,
    "out_channels": 5,
    "num_blocks": 2,
    "num_heads": 2,
    "mlp_ratio": 2.0,
    "pe_mode": "rope",
}


def _block(name: str, cls: str, inputs: str, doc: str, **arguments: Any) -> Subject:
    return Subject(
        name=name,
        factory="matrix.builders:awake",
        arguments={"of": f"wcn_ckpt.nn.modules:{cls}", **arguments},
        inputs=inputs,
        input_arguments={"channels": arguments["channels"], "crop": 8},
        options=("sites",),
        narrowings=(NO_BATCH_NORM,),
        doc=doc,
    )


def _transformer(name: str, cls: str, doc: str, *, context: bool = False) -> Subject:
    sparse = "Sparse" in cls
    arguments = {"of": f"wcn_ckpt.nn.modules:{cls}", "channels": 24, "num_heads": 2}
    if context:
        arguments["ctx_channels"] = 10
    inputs: dict[str, Any] = {"channels": 24, "context_channels": 10 if context else 0, "crop": 6}
    if not sparse:
        inputs["head_channels"] = 12
    return Subject(
        name=name,
        factory="matrix.builders:awake",
        arguments={**arguments, "mlp_ratio": 2.0, "use_rope": True, "qk_rms_norm": True},
        inputs=f"matrix.trellis_batches:{'modulated_voxels' if sparse else 'modulated_tokens'}",
        input_arguments=inputs,
        options=("sites",) if sparse else ("compile",),
        narrowings=(NO_BATCH_NORM,),
        doc=doc,
    )


def _vae(name: str, cls: str, inputs: str, doc: str, **options: Any) -> Subject:
    down = cls.endswith("Encoder")
    builder = "dual_grid_decoder" if cls == "FlexiDualGridVaeDecoder" else "sparse_vae"
    return Subject(
        name=name,
        factory=f"matrix.builders:{builder}",
        arguments={
            "of": f"wcn_ckpt.models:{cls}",
            "num_blocks": (1, 1),
            "model_channels": (8, 16) if down else (16, 8),
            "latent_channels": 4,
            "down_block_type" if down else "up_block_type": [
                f"SparseResBlock{'S2C' if down else 'C2S'}3d"
            ],
            **options,
        },
        inputs=inputs,
        input_arguments={"crop": 8}
        if inputs.endswith("dual_grid")
        else {"crop": 6, "channels": 6 if down else 4},
        kind="model",
        options=("sites",),
        narrowings=(NO_BATCH_NORM,),
        doc=doc,
    )


TRELLIS_SUBJECTS: tuple[Subject, ...] = (
    _block(
        "convnext",
        "SparseConvNeXtBlock3d",
        "matrix.batches:terrain_batch",
        "ConvNeXt block on voxels",
        channels=8,
    ),
    _block(
        "space-to-channel",
        "SparseSpatialToChannelResBlock3d",
        "matrix.batches:terrain_batch",
        "from voxels to their parents",
        channels=8,
        out_channels=16,
    ),
    _block(
        "channel-to-space",
        "SparseChannelToSpatialResBlock3d",
        "matrix.trellis_batches:voxels_and_children",
        "from voxels to their children, which are given",
        channels=16,
        out_channels=8,
        pred_subdiv=False,
    ),
    _block(
        "channel-to-space-predicted",
        "SparseChannelToSpatialResBlock3d",
        "matrix.batches:terrain_batch",
        "from voxels to their children, which it predicts",
        channels=16,
        out_channels=8,
    ),
    _transformer("dit", "ModulatedTransformerBlock", "modulated block on dense tokens"),
    _transformer(
        "dit-cross",
        "ModulatedTransformerCrossBlock",
        "modulated block on dense tokens, with a context",
        context=True,
    ),
    _transformer("sparse-dit", "ModulatedSparseTransformerBlock", "modulated block on voxels"),
    _transformer(
        "sparse-dit-cross",
        "ModulatedSparseTransformerCrossBlock",
        "modulated block on voxels, with a context",
        context=True,
    ),
    _vae(
        "vae-encoder",
        "SparseUnetVaeEncoder",
        "matrix.batches:terrain_batch",
        "a whole sparse encoder of two stages",
        in_channels=6,
    ),
    _vae(
        "vae-decoder",
        "SparseUnetVaeDecoder",
        "matrix.trellis_batches:voxels_to_decode",
        "a whole sparse decoder of two stages, with its predictions",
        out_channels=5,
    ),
    _vae(
        "dual-grid-encoder",
        "FlexiDualGridVaeEncoder",
        "matrix.trellis_batches:dual_grid",
        "a whole encoder of dual grids",
    ),
    _vae(
        "dual-grid-decoder",
        "FlexiDualGridVaeDecoder",
        "matrix.batches:terrain_batch",
        "a whole decoder of dual grids; its choice of voxels is frozen",
        resolution=16,
    ),
    Subject(
        name="structure-flow",
        factory="matrix.builders:awake",
        arguments={"of": "wcn_ckpt.models:SparseStructureFlowModel", **_FLOW},
        inputs="matrix.trellis_batches:noisy_grid",
        input_arguments={"channels": 4, "context_channels": 10, "resolution": 3},
        kind="model",
        options=("compile",),
        narrowings=(NO_BATCH_NORM,),
        doc="a whole dense flow model of two blocks",
    ),
    Subject(
        name="slat-flow",
        factory="matrix.builders:awake",
        arguments={"of": "wcn_ckpt.models:SLatFlowModel", **_FLOW, "share_mod": True},
        inputs="matrix.trellis_batches:noisy_voxels",
        input_arguments={"channels": 4, "context_channels": 10, "crop": 6},
        kind="model",
        options=("sites",),
        narrowings=(NO_BATCH_NORM,),
        doc="a whole sparse flow model of two blocks with one modulation",
    ),
)
"""The subjects of these families."""
