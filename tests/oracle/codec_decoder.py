"""Codes to audio, with carried state: any cut of the frames gives the same samples.

Ported from: QwenLM/Qwen3-TTS modeling_qwen3_tts_tokenizer_v2.py Qwen3TTSTokenizerV2Decoder.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.checkpoint import OracleCheckpoint
from tests.oracle.layers import (
    as_float32,
    attend,
    conv1d,
    gelu,
    layer_norm,
    rms_norm,
    rotate,
    silu,
    snake,
    split_heads,
    transposed_conv1d,
)
from wyoming_qwen3tts.arrays import Float32Array, Int64Array

_MIN_CLUSTER_USAGE = 1e-5
_CONV_NEXT_EPSILON = 1e-6
_RESIDUAL_DILATIONS = {2: 1, 3: 3, 4: 9}


class OracleCodecDecoder:
    """A streaming decoder that is also the offline one."""

    def __init__(self, directory: Path) -> None:
        """Read a checkpoint's codec."""
        checkpoint = OracleCheckpoint(directory)
        self._config: dict[str, Any] = checkpoint.codec_config["decoder_config"]
        self._weights = checkpoint.codec_weights
        self._tables = self._read_tables()
        self.reset()

    def reset(self) -> None:
        """Go back to before the first frame."""
        self._context: dict[str, Float32Array] = {}
        self._cache: dict[str, tuple[Float32Array, Float32Array]] = {}
        self._position = 0

    def decode(self, codes: Int64Array) -> Float32Array:
        """Decode further frames (F, G) into samples (S,) in [-1, 1]."""
        latents = sum(table[codes[:, group]] for group, table in enumerate(self._tables))
        values = self._causal_conv("decoder.pre_conv.conv", np.asarray(latents, np.float32).T)
        values = self._transformer(values.T).T
        for stage, ratio in enumerate(self._config["upsampling_ratios"]):
            values = self._upsample(f"decoder.upsample.{stage}", values, ratio)
        values = self._causal_conv("decoder.decoder.0.conv", values)
        for block, ratio in enumerate(self._config["upsample_rates"], start=1):
            values = self._block(f"decoder.decoder.{block}.block", values, ratio)
        last = len(self._config["upsample_rates"]) + 1
        values = self._snake(f"decoder.decoder.{last}", values)
        values = self._causal_conv(f"decoder.decoder.{last + 1}.conv", values)
        return as_float32(np.clip(values[0], -1, 1))

    def _read_tables(self) -> list[Float32Array]:
        """Return one table (C, codebook width) per group, output projection included."""
        tables = []
        for part, count in (("rvq_first", 1), ("rvq_rest", self._config["num_quantizers"] - 1)):
            name = f"decoder.quantizer.{part}"
            projection = self._weights[f"{name}.output_proj.weight"][:, :, 0]
            for layer in range(count):
                book = f"{name}.vq.layers.{layer}._codebook"
                usage = np.maximum(self._weights[f"{book}.cluster_usage"], _MIN_CLUSTER_USAGE)
                centroids = self._weights[f"{book}.embedding_sum"] / usage[:, None]
                tables.append(as_float32(centroids @ projection.T))
        return tables

    def _transformer(self, inputs: Float32Array) -> Float32Array:
        """(F, latent width) to the same."""
        prefix = "decoder.pre_transformer"
        hidden = self._linear(f"{prefix}.input_proj", inputs)
        positions = np.arange(self._position, self._position + len(hidden))
        for layer in range(self._config["num_hidden_layers"]):
            name = f"{prefix}.layers.{layer}"
            normed = self._rms_norm(f"{name}.input_layernorm", hidden)
            attended = self._attention(f"{name}.self_attn", normed, positions)
            hidden = hidden + self._weights[f"{name}.self_attn_layer_scale.scale"] * attended
            normed = self._rms_norm(f"{name}.post_attention_layernorm", hidden)
            gate = silu(normed @ self._weights[f"{name}.mlp.gate_proj.weight"].T)
            up = normed @ self._weights[f"{name}.mlp.up_proj.weight"].T
            down = (gate * up) @ self._weights[f"{name}.mlp.down_proj.weight"].T
            hidden = hidden + self._weights[f"{name}.mlp_layer_scale.scale"] * down
        self._position += len(hidden)
        return self._linear(f"{prefix}.output_proj", self._rms_norm(f"{prefix}.norm", hidden))

    def _attention(self, name: str, normed: Float32Array, positions: Int64Array) -> Float32Array:
        theta, window = self._config["rope_theta"], self._config["sliding_window"]
        query, key, value = (
            split_heads(normed @ self._weights[f"{name}.{part}_proj.weight"].T, num_heads)
            for part, num_heads in (
                ("q", self._config["num_attention_heads"]),
                ("k", self._config["num_key_value_heads"]),
                ("v", self._config["num_key_value_heads"]),
            )
        )
        query, key = rotate(query, positions, theta), rotate(key, positions, theta)
        if name in self._cache:
            past_key, past_value = self._cache[name]
            key = np.concatenate([past_key, key], axis=1)
            value = np.concatenate([past_value, value], axis=1)
        self._cache[name] = key[:, -(window - 1) :], value[:, -(window - 1) :]
        past = key.shape[1] - len(normed)
        attended = attend(query, key, value, past=past, window=window)
        return attended @ self._weights[f"{name}.o_proj.weight"].T

    def _upsample(self, name: str, values: Float32Array, ratio: int) -> Float32Array:
        values = self._causal_transposed_conv(f"{name}.0.conv", values, ratio)
        name = f"{name}.1"
        hidden = self._causal_conv(f"{name}.dwconv.conv", values).T
        hidden = layer_norm(
            hidden,
            self._weights[f"{name}.norm.weight"],
            self._weights[f"{name}.norm.bias"],
            _CONV_NEXT_EPSILON,
        )
        hidden = self._linear(f"{name}.pwconv2", gelu(self._linear(f"{name}.pwconv1", hidden)))
        return values + (self._weights[f"{name}.gamma"] * hidden).T

    def _block(self, name: str, values: Float32Array, ratio: int) -> Float32Array:
        values = self._snake(f"{name}.0", values)
        values = self._causal_transposed_conv(f"{name}.1.conv", values, ratio)
        for unit, dilation in _RESIDUAL_DILATIONS.items():
            inner = self._snake(f"{name}.{unit}.act1", values)
            inner = self._causal_conv(f"{name}.{unit}.conv1.conv", inner, dilation)
            inner = self._snake(f"{name}.{unit}.act2", inner)
            values = values + self._causal_conv(f"{name}.{unit}.conv2.conv", inner)
        return values

    def _causal_conv(self, name: str, values: Float32Array, dilation: int = 1) -> Float32Array:
        """Convolve after the inputs carried over from the last call, at first zeros."""
        weight = self._weights[f"{name}.weight"]
        num_context = (weight.shape[2] - 1) * dilation
        if num_context:
            empty = np.zeros((len(values), num_context), np.float32)
            values = np.concatenate([self._context.get(name, empty), values], axis=1)
            self._context[name] = values[:, -num_context:]
        return conv1d(values, weight, self._weights[f"{name}.bias"], dilation=dilation)

    def _causal_transposed_conv(self, name: str, values: Float32Array, ratio: int) -> Float32Array:
        """Upsample; a kernel of twice the ratio also reaches into the input before."""
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        if weight.shape[2] == ratio:
            return transposed_conv1d(values, weight, bias, stride=ratio)
        empty = np.zeros((len(values), 1), np.float32)
        extended = np.concatenate([self._context.get(name, empty), values], axis=1)
        self._context[name] = values[:, -1:]
        result = transposed_conv1d(extended, weight, bias, stride=ratio)
        return result[:, ratio : ratio + values.shape[1] * ratio]

    def _snake(self, name: str, values: Float32Array) -> Float32Array:
        return snake(values, self._weights[f"{name}.alpha"], self._weights[f"{name}.beta"])

    def _linear(self, name: str, values: Float32Array) -> Float32Array:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _rms_norm(self, name: str, values: Float32Array) -> Float32Array:
        return rms_norm(values, self._weights[f"{name}.weight"], self._config["rms_norm_eps"])
