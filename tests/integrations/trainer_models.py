"""The ways in which a model with boundaries reaches the Trainer of Transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tests.checkpointing.foreign import Layer
from wcn_ckpt import (
    GradientCheckpointingMixin,
    GradientCheckpointingModelMixin,
    make_checkpointable,
    preserve_replay_state,
)


class Boundary(GradientCheckpointingMixin, Layer):
    def __init__(self) -> None:
        super().__init__()
        self._init_gradient_checkpointing()

    def forward(self, x: Tensor) -> Any:
        return self._gradient_checkpointed_call(super().forward, x)


class Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "wcn-ckpt-test"


def result(out: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"loss": (out - labels).square().mean(), "logits": out}


class Ours(GradientCheckpointingModelMixin, nn.Module):
    """The model itself, with our methods."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Boundary(), Boundary()])

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return result(x, labels)


class Pretrained(PreTrainedModel):  # type: ignore[misc]
    """Blocks inside a model of Transformers, whose own methods switch them."""

    config_class = Config
    supports_gradient_checkpointing = True
    main_input_name = "x"
    block: type[nn.Module] = Boundary

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or Config())
        self.layers = nn.ModuleList([self.block(), self.block()])
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None: ...

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return result(x, labels)


class Unprepared(Pretrained):
    """The same with blocks that know nothing of us."""

    block = Layer


class OwnFlag(Unprepared):
    """A model that makes its checkpoint calls itself, in the way of Transformers."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self.gradient_checkpointing = False

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x)
            else:
                x = layer(x)
        return result(x, labels)


def ours() -> nn.Module:
    return Ours()


def pretrained() -> nn.Module:
    return Pretrained()


def made() -> nn.Module:
    model = Unprepared()
    make_checkpointable(model, Layer)
    return model


def preserved() -> nn.Module:
    model = OwnFlag()
    preserve_replay_state(model)
    return model


ARRANGEMENTS = {build.__name__: build for build in (ours, pretrained, made, preserved)}


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Random rows, each from a seed of its own."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {
            "x": torch.randn(4, generator=generator),
            "labels": torch.randn(4, generator=generator),
        }
