"""Tiny models of Transformers with random weights, and inputs for them.

A configuration is shrunk by the names of its fields, which Transformers keeps alike across models.
Nothing is downloaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_SIZES: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_dim"), 32),
    **dict.fromkeys(("embedding_size", "d_inner", "output_hidden_size", "conv_dim_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "d_ff", "n_inner"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dim_feedforward"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("speech_encoder_layers", "text_encoder_layers", "t2u_encoder_layers"), 2),
    **dict.fromkeys(("text_decoder_layers", "t2u_decoder_layers", "adaptor_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "kv_heads"), 2),
    **dict.fromkeys(("d_kv", "head_dim"), 8),
    **dict.fromkeys(("vocab_size", "vocab_size_or_config_json_file"), 128),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_target_positions"), 64),
    **dict.fromkeys(("max_source_positions",), 32),
    **dict.fromkeys(("image_size", "input_size", "img_size"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
}
"""Field of a configuration -> the size it gets, where it is an int."""

_KEPT_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")
_LARGEST_IN_LIST = 32


def build(name: str, **overrides: Any) -> nn.Module:
    """Build a tiny model of a class of Transformers.

    Args:
        name: Name of the class, such as ``BertModel``.
        overrides: Fields of the configuration that are set as given.

    Raises:
        Exception: Whatever Transformers raises for the shrunk configuration.
    """
    import transformers

    kind: Any = getattr(transformers, name)
    config_class = kind.config_class
    config = config_class(**{**shrunk(config_class()), **overrides})
    if getattr(config, "use_cache", False):
        # A training step has no use for a cache, and Transformers makes none with the flag on.
        config.use_cache = False
    model: nn.Module = kind(config)
    return model


def shrunk(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration that a tiny model sets otherwise.

    Args:
        config: A configuration of Transformers, at its defaults.
    """
    taken = inspect.signature(type(config).__init__).parameters
    fields: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if name in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            fields[name] = min(value, _SIZES[name])
        elif name in _KEPT_IDS and isinstance(value, int) and value >= _SIZES["vocab_size"]:
            fields[name] = 1
        elif name in _PARTS and isinstance(value, Mapping) and hasattr(config, name):
            fields[name] = {**value, **shrunk(getattr(config, name))}
        elif name == "conv_dim" and isinstance(value, (list, tuple)):
            fields[name] = [_LARGEST_IN_LIST] * len(value)
    return {name: value for name, value in fields.items() if name in taken or _open(taken)}


def inputs(model: nn.Module) -> dict[str, Any]:
    """Make a batch of two for a model of Transformers.

    Args:
        model: The model.

    Returns:
        The keywords of its forward. What they are follows from ``main_input_name``.

    Raises:
        ValueError: If no inputs are known for it.
    """
    config: Any = model.config
    main = str(getattr(model, "main_input_name", "input_ids"))
    maker = _MAKERS.get(main)
    if maker is None:
        raise ValueError(f"no inputs are known for {main!r}; give --inputs")
    made: dict[str, Any] = {main: maker(config)}
    takes = inspect.signature(model.forward).parameters
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        made["decoder_input_ids"] = _input_ids(config)
    return made


def _open(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _field(config: Any, *names: str, default: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)):
            value = value[0]
        if isinstance(value, int):
            return value
    return default


def _input_ids(config: Any) -> Tensor:
    vocabulary = _field(config.get_text_config(), "vocab_size", default=100)
    return torch.randint(3, vocabulary, (2, 16))


def _pixel_values(config: Any) -> Tensor:
    vision = getattr(config, "vision_config", config)
    size = _field(vision, "image_size", "input_size", default=64)
    return torch.randn(2, _field(vision, "num_channels", default=3), size, size)


def _input_values(config: Any) -> Tensor:
    return torch.randn(2, 4000)


def _input_features(config: Any) -> Tensor:
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        return torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
    width = _field(
        config, "feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", default=80
    )
    return torch.randn(2, 32, width)


_MAKERS = {
    "input_ids": _input_ids,
    "pixel_values": _pixel_values,
    "input_values": _input_values,
    "input_features": _input_features,
}
"""Name of the main input -> the function that makes it."""
