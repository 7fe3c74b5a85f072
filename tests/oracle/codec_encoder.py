"""Audio to codes, for ICL prompts.

Ported from: huggingface/transformers modeling_mimi.py MimiModel.encode.
"""

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.oracle.checkpoint import OracleCheckpoint
from tests.oracle.layers import (
    attend,
    conv1d,
    elu,
    gelu,
    layer_norm,
    pad_last,
    rotate,
    split_heads,
)
from wyoming_qwen3tts.arrays import Float32Array, Int64Array

_MIN_CLUSTER_USAGE = 1e-5


class OracleCodecEncoder:
    """The Mimi encoder with its first quantizers."""

    def __init__(self, directory: Path) -> None:
        """Read a checkpoint's codec."""
        checkpoint = OracleCheckpoint(directory)
        self._config: dict[str, Any] = checkpoint.codec_config["encoder_config"]
        self._num_groups: int = checkpoint.codec_config["encoder_valid_num_quantizers"]
        self._weights = checkpoint.codec_weights

    def encode(self, samples: Float32Array) -> Int64Array:
        """Encode samples (S,) into codes (F, G), F = ceil(S / 1920)."""
        prefix = "encoder.encoder.layers"
        values = self._conv(f"{prefix}.0.conv", samples[None])
        layer = 1
        for ratio in reversed(self._config["upsampling_ratios"]):
            inner = self._conv(f"{prefix}.{layer}.block.1.conv", elu(values))
            values = values + self._conv(f"{prefix}.{layer}.block.3.conv", elu(inner))
            values = self._conv(f"{prefix}.{layer + 2}.conv", elu(values), ratio)
            layer += 3
        values = self._conv(f"{prefix}.{layer + 1}.conv", elu(values))
        values = self._transformer(values.T).T
        values = self._conv("encoder.downsample.conv", values, 2, "edge")
        # Both start from the same latents: the acoustic part is no residual of the semantic one.
        semantic = self._quantize("semantic", values, 1)
        acoustic = self._quantize("acoustic", values, self._num_groups - 1)
        return np.stack([*semantic, *acoustic], axis=1)

    def _conv(
        self,
        name: str,
        values: Float32Array,
        stride: int = 1,
        mode: Literal["constant", "edge"] = "constant",
    ) -> Float32Array:
        """Convolve causally; the end is padded so that the last partial hop is kept."""
        weight = self._weights[f"{name}.weight"]
        num_outputs = math.ceil(values.shape[1] / stride)
        left = weight.shape[2] - stride
        right = num_outputs * stride - values.shape[1]
        padded = pad_last(values, left, right, mode)
        return conv1d(padded, weight, self._weights.get(f"{name}.bias"), stride=stride)

    def _transformer(self, hidden: Float32Array) -> Float32Array:
        positions = np.arange(len(hidden))
        for layer in range(self._config["num_hidden_layers"]):
            name = f"encoder.encoder_transformer.layers.{layer}"
            normed = self._layer_norm(f"{name}.input_layernorm", hidden)
            attended = self._attention(f"{name}.self_attn", normed, positions)
            hidden = hidden + self._weights[f"{name}.self_attn_layer_scale.scale"] * attended
            normed = self._layer_norm(f"{name}.post_attention_layernorm", hidden)
            inner = gelu(normed @ self._weights[f"{name}.mlp.fc1.weight"].T)
            outer = inner @ self._weights[f"{name}.mlp.fc2.weight"].T
            hidden = hidden + self._weights[f"{name}.mlp_layer_scale.scale"] * outer
        return hidden

    def _attention(self, name: str, normed: Float32Array, positions: Int64Array) -> Float32Array:
        num_heads, theta = self._config["num_attention_heads"], self._config["rope_theta"]
        query, key, value = (
            split_heads(normed @ self._weights[f"{name}.{part}_proj.weight"].T, num_heads)
            for part in "qkv"
        )
        # Full causal attention: the configured sliding window is not applied by the official code.
        attended = attend(
            rotate(query, positions, theta), rotate(key, positions, theta), value, past=0
        )
        return attended @ self._weights[f"{name}.o_proj.weight"].T

    def _quantize(self, part: str, values: Float32Array, count: int) -> list[Int64Array]:
        name = f"encoder.quantizer.{part}_residual_vector_quantizer"
        residual = (self._weights[f"{name}.input_proj.weight"][:, :, 0] @ values).T
        codes = []
        for layer in range(count):
            book = f"{name}.layers.{layer}.codebook"
            usage = np.maximum(self._weights[f"{book}.cluster_usage"], _MIN_CLUSTER_USAGE)
            centroids = self._weights[f"{book}.embed_sum"] / usage[:, None]
            distances = ((residual[:, None] - centroids[None]) ** 2).sum(-1)
            nearest = distances.argmin(-1)
            codes.append(nearest)
            residual = residual - centroids[nearest]
        return codes

    def _layer_norm(self, name: str, values: Float32Array) -> Float32Array:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return layer_norm(values, weight, bias, self._config["norm_eps"])
