"""The benchmarks of memory: what whole models keep for backward, and what that costs in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from harness.bench.benchmark import Benchmark, Measurement
from harness.bench.estimate import exact
from harness.bench.paired import time_pairs, time_ratio
from harness.bench.saved_bytes import memory_of
from harness.bench.workloads import (
    Workload,
    latent_flow,
    mink_unet,
    point_transformer,
    spaceformer,
    structure_flow,
    training_step,
    vae_decoder,
    vae_encoder,
)


@dataclass(frozen=True)
class ModelMemory:
    """The figures of one model.

    Args:
        name: of the model, as in the names of its benchmarks.
        title: of the model, as people read it.
        workload: makes the model and its input.
        ratio_goal: largest ratio of checkpointed to ordinary bytes; None for no goals at all.
        pairs: interleaved pairs of training steps of the time ratio.
    """

    name: str
    title: str
    workload: Callable[[], Workload]
    ratio_goal: float | None = None
    pairs: int = 6

    def bytes_over_limit(self, samples: int = 1) -> Measurement:
        """Return the bytes of the checkpointed arm over the limit; counted, not sampled."""
        return self._ratio("checkpointed", "limit")

    def bytes_over_ordinary(self, samples: int = 1) -> Measurement:
        """Return the bytes of the checkpointed arm over those of the ordinary one."""
        return self._ratio("checkpointed", "ordinary")

    def bytes_inside_over_inputs(self, samples: int = 1) -> Measurement:
        """Return what the checkpointed arm keeps inside boundaries over what they were given."""
        return self._ratio("checkpointed_inside", "boundary_inputs")

    def step_time(self, samples: int) -> Measurement:
        """Time a checkpointed training step over an ordinary one.

        Args:
            samples: interleaved pairs of steps.
        """
        workload = self.workload()
        judged, reference = (training_step(workload, use)[1] for use in (True, False))
        pairs = time_pairs(judged, reference, samples, warm_up=1)
        return time_ratio([[pair] for pair in pairs], sites=workload.sites)

    def benchmarks(self) -> list[Benchmark]:
        """Return its figures."""
        counted = [
            ("saved-over-limit", "the limit", self.bytes_over_limit, 1.05),
            ("saved-over-ordinary", "ordinary training", self.bytes_over_ordinary, self.ratio_goal),
            (
                "saved-inside-over-inputs",
                "the boundary inputs, inside boundaries",
                self.bytes_inside_over_inputs,
                1.05,
            ),
        ]
        if self.ratio_goal is None:
            del counted[-1]
        figures = [
            Benchmark(
                name=f"{kind}-{self.name}",
                group="quick",
                unit="ratio",
                doc=f"bytes saved for backward over {over}, {self.title}",
                run=run,
                samples=1,
                at_most=None if self.ratio_goal is None else goal,
            )
            for kind, over, run, goal in counted
        ]
        return [
            *figures,
            Benchmark(
                name=f"step-time-{self.name}",
                group="long",
                unit="ratio",
                doc=f"a whole checkpointed training step over an ordinary one, {self.title}",
                run=self.step_time,
                samples=self.pairs,
            ),
        ]

    def _ratio(self, part: str, whole: str) -> Measurement:
        counts = _counts(self.workload)
        return Measurement(exact(counts[part] / counts[whole]), counts)


@cache
def _counts(make: Callable[[], Workload]) -> dict[str, Any]:
    workload = make()
    ordinary = memory_of(workload, use_checkpoint=False)
    judged = memory_of(workload, use_checkpoint=True)
    return {
        "sites": workload.sites,
        "ordinary": ordinary.bytes(ordinary.total),
        "ordinary_inside": ordinary.bytes(ordinary.total - ordinary.outside),
        "ordinary_outside": ordinary.bytes(ordinary.outside),
        "limit": ordinary.bytes(ordinary.limit),
        "checkpointed": judged.bytes(judged.total),
        "checkpointed_inside": judged.bytes(judged.for_boundaries),
        "checkpointed_outside": judged.bytes(judged.outside),
        "boundary_inputs": judged.bytes(judged.inputs),
    }


MODELS = (
    ModelMemory("minkunet18", "MinkUNet18, 10 000 voxels", lambda: mink_unet(10_000), 0.50),
    ModelMemory(
        "ptv3", "Point Transformer V3, 4 000 voxels", lambda: point_transformer(4_000), 0.35
    ),
    ModelMemory("spaceformer", "SpaCeFormer, 4 000 voxels", lambda: spaceformer(4_000), 0.35),
    ModelMemory("vae-encoder", "TRELLIS.2 encoder, 4 000 voxels", lambda: vae_encoder(4_000)),
    ModelMemory("vae-decoder", "TRELLIS.2 decoder, 500 voxels", lambda: vae_decoder(500)),
    ModelMemory(
        "structure-flow", "TRELLIS.2 dense flow, 2 x 512 tokens", lambda: structure_flow(8)
    ),
    ModelMemory("slat-flow", "TRELLIS.2 sparse flow, 2 crops", lambda: latent_flow(24)),
)
"""The models, on the terrain."""

MEMORY = tuple(benchmark for model in MODELS for benchmark in model.benchmarks())
