"""Transformers switches the boundaries of these models with its own methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.models.trellis import FAMILIES
from tests.nn.twins import boundaries, count_calls

transformers = pytest.importorskip("transformers", reason="needs the `hf` extra")


class Pretrained(transformers.PreTrainedModel):
    config_class = transformers.PretrainedConfig
    supports_gradient_checkpointing = True
    main_input_name = "x"

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(transformers.PretrainedConfig())
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pretrained_model_switches_our_boundaries(name: str) -> None:
    inner, args = FAMILIES[name]()
    model = Pretrained(inner).train()
    enable, disable = (
        getattr(model, f"activation_checkpointing_{verb}", None)
        or getattr(model, f"gradient_checkpointing_{verb}")
        for verb in ("enable", "disable")
    )
    calls = count_calls(inner)

    enable({"use_reentrant": False})  # the default before release 5 was reentrant
    out = model(*args)
    features = out if isinstance(out, torch.Tensor) else out.feats
    features.square().sum().backward()

    assert all(b.gradient_checkpointing for b in boundaries(inner))
    assert set(calls.values()) == {2}
    enable({"preserve_rng_state": False, "use_reentrant": False})
    for boundary in boundaries(inner):
        assert boundary._gradient_checkpointing_func.keywords == {
            "preserve_rng_state": False,
            "use_reentrant": False,
        }
    with pytest.raises(ValueError, match="use_reentrant=False"):
        enable({"use_reentrant": True})
    disable()
    assert not inner.is_gradient_checkpointing
