"""The codec encoder graph: samples (S,) of any length to codes (F, G), F = ceil(S / 1920).

::

    samples ─ conv ─ 4 x (residual unit, ELU, strided conv) ─ ELU ─ conv ─┐  channel-major, to 25 Hz
    ┌─────────────────────────────────────────────────────────────────────┘
    └ transformer ─┐                                                         time-major
    ┌──────────────┘
    └ strided conv ─ residual quantizers ─ codes                             to 12.5 Hz

Every convolution is causal; a strided one pads its own input on the right until the last partial
hop is whole, so the padding depends on the length and is computed in the graph.

Ported from: huggingface/transformers modeling_mimi.py MimiModel.encode, of which the official
package keeps the first quantizers. Attention is full causal: the configured window is not applied
there either.
"""

import math
from pathlib import Path
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.codec_layers import (
    Rotary,
    attend,
    causal_mask,
    centroids,
    constant_shape,
    int64_range,
    length,
    linear,
    rotary,
    split_heads,
)
from wyoming_qwen3tts.builder.config import CodecEncoderConfig
from wyoming_qwen3tts.builder.graph import GraphBuilder, Value

COMPONENT: Final = "codec_encoder"


def build_codec_encoder(
    codec: TensorFile, config: CodecEncoderConfig, num_groups: int, directory: Path
) -> None:
    """Write ``codec_encoder.onnx`` and its data.

    Args:
        codec: Tensors of ``speech_tokenizer/model.safetensors``.
        config: Widths and counts.
        num_groups: Code groups G to compute, at most the quantizers of the checkpoint.
        directory: Where to write.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    with GraphBuilder(COMPONENT, directory) as graph:
        _Encoder(graph, codec, config, num_groups).build()
        graph.save()


def ignored_encoder_tensors(config: CodecEncoderConfig, num_groups: int) -> dict[str, str]:
    """Return the tensors (patterns) that encoding into ``num_groups`` groups does not need."""
    ignored = {
        "encoder.quantizer.*.output_proj.weight": "turns codes into features; not for encoding",
        "encoder.quantizer.*.codebook.initialized": "a flag of training",
    }
    first = num_groups - config.num_semantic_quantizers
    for layer in range(first, config.num_quantizers - config.num_semantic_quantizers):
        pattern = f"{_quantizer('acoustic')}.layers.{layer}.codebook.*"
        ignored[pattern] = "a frame has fewer groups than the quantizer has layers"
    return ignored


class _Encoder:
    """One encoder graph in the making."""

    def __init__(
        self, graph: GraphBuilder, codec: TensorFile, config: CodecEncoderConfig, num_groups: int
    ) -> None:
        self.graph = graph
        self.codec = codec
        self.config = config
        self.num_groups = num_groups

    def build(self) -> None:
        """Add every stage."""
        graph, config = self.graph, self.config
        samples = graph.input("samples", np.float32, ["S"])
        x = graph.op("Reshape", [samples, constant_shape(graph, 1, config.audio_channels, -1)])
        x = self._convolutions(x)  # (1, hidden, T)
        x = graph.op("Squeeze", [x, graph.constant([0], np.int64)])
        x = self._transformer(graph.op("Transpose", [x], perm=[1, 0]))  # (T, hidden)
        x = self._downsample(x)  # (F, hidden)
        semantic = config.num_semantic_quantizers
        columns = [
            *self._quantize(x, "semantic", semantic),
            *self._quantize(x, "acoustic", self.num_groups - semantic),
        ]
        codes = graph.direct_output("codes", np.int64, [None, self.num_groups])
        graph.ops("Concat", columns, [codes], axis=1)

    def _read(self, name: str, *shape: int) -> Float32Array:
        return self.codec.read(f"encoder.{name}", shape)

    def _convolutions(self, x: Value) -> Value:
        config = self.config
        width = config.num_filters
        x = self._conv(x, "encoder.layers.0.conv", config.audio_channels, width, config.kernel_size)
        layer = 1
        for rate in reversed(config.upsampling_ratios):
            for unit in range(config.num_residual_layers):
                dilation = config.dilation_growth_rate**unit
                x = self._residual_unit(x, f"encoder.layers.{layer}.block", width, dilation)
                layer += 1
            name = f"encoder.layers.{layer + 1}.conv"  # one before it is the ELU
            x = self._conv(self._elu(x), name, width, 2 * width, 2 * rate, stride=rate)
            width *= 2
            layer += 2
        hidden, taps = config.transformer.hidden_size, config.last_kernel_size
        return self._conv(self._elu(x), f"encoder.layers.{layer + 1}.conv", width, hidden, taps)

    def _elu(self, x: Value) -> Value:
        return self.graph.op("Elu", [x])

    def _residual_unit(self, x: Value, name: str, width: int, dilation: int) -> Value:
        inner = width // self.config.compress
        taps = self.config.residual_kernel_size
        y = self._conv(self._elu(x), f"{name}.1.conv", width, inner, taps, dilation=dilation)
        y = self._conv(self._elu(y), f"{name}.3.conv", inner, width, 1)
        return self.graph.op("Add", [x, y])

    def _conv(
        self,
        x: Value,
        name: str,
        width_in: int,
        width_out: int,
        taps: int,
        *,
        stride: int = 1,
        dilation: int = 1,
    ) -> Value:
        """Convolve x (1, D_in, T) causally into (1, D_out, ceil(T / stride))."""
        graph = self.graph
        kernel = self._read(f"{name}.weight", width_out, width_in, taps)
        bias = self._read(f"{name}.bias", width_out)
        weights = [graph.weight(f"{name}.weight", kernel), graph.weight(f"{name}.bias", bias)]
        before = (taps - 1) * dilation + 1 - stride
        if stride > 1:
            x = self._pad(x, before, stride, mode="constant")
            before = 0
        return graph.op(
            "Conv",
            [x, *weights],
            kernel_shape=[taps],
            strides=[stride],
            dilations=[dilation],
            pads=[before, 0],
        )

    def _pad(self, x: Value, before: int, stride: int, mode: str) -> Value:
        """Pad the time axis of x (1, D, T): ``before``, and after it up to a whole hop."""
        graph = self.graph
        size = graph.op("Shape", [x], start=2, end=3)
        step = graph.constant([stride], np.int64)
        # A floor Mod has the divisor's sign, so this is what is missing to the next multiple.
        after = graph.op("Mod", [graph.op("Neg", [size]), step])
        pads = graph.op("Concat", [graph.constant([before], np.int64), after], axis=0)
        axes = graph.constant([2], np.int64)
        fill = graph.constant(0.0, np.float32)
        return graph.op("Pad", [x, pads, fill, axes], mode=mode)

    def _transformer(self, x: Value) -> Value:
        """Run the layers over x (T, hidden); there is no last norm."""
        graph, transformer = self.graph, self.config.transformer
        num_positions = length(graph, x, 0)
        positions = int64_range(graph, graph.constant(0, np.int64), num_positions)
        tables = rotary(graph, positions, transformer.head_size, transformer.rope_theta)
        mask = causal_mask(graph, num_positions, num_positions, window=None)
        for layer in range(transformer.num_layers):
            name = f"encoder_transformer.layers.{layer}"
            with graph.scope(name):
                normed = self._layer_norm(x, f"{name}.input_layernorm")
                x = graph.op("Add", [x, self._attention(normed, name, tables, mask)])
                normed = self._layer_norm(x, f"{name}.post_attention_layernorm")
                x = graph.op("Add", [x, self._mlp(normed, name)])
        return x

    def _layer_norm(self, x: Value, name: str) -> Value:
        transformer = self.config.transformer
        scale, shift = (
            self.graph.weight(
                f"{name}.{part}", self._read(f"{name}.{part}", transformer.hidden_size)
            )
            for part in ("weight", "bias")
        )
        return self.graph.op(
            "LayerNormalization", [x, scale, shift], axis=-1, epsilon=transformer.norm_eps
        )

    def _attention(self, x: Value, name: str, tables: Rotary, mask: Value) -> Value:
        graph, transformer = self.graph, self.config.transformer
        hidden, width = transformer.hidden_size, transformer.query_size
        heads, kv_heads = transformer.num_heads, transformer.num_kv_heads
        query = self._read(f"{name}.self_attn.q_proj.weight", width, hidden)
        key, value = (
            self._read(f"{name}.self_attn.{part}_proj.weight", transformer.kv_size, hidden)
            for part in ("k", "v")
        )
        query = query / math.sqrt(transformer.head_size)
        queries, keys, values = (
            split_heads(
                graph,
                linear(graph, x, f"{name}.self_attn.{part}_proj", weight),
                count,
                transformer.head_size,
            )
            for part, weight, count in (
                ("q", query, heads),
                ("k", key, kv_heads),
                ("v", value, kv_heads),
            )
        )
        mixed = attend(
            graph,
            tables.rotate(graph, queries),
            tables.rotate(graph, keys),
            values,
            mask,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_size=transformer.head_size,
        )
        weight = self._read(f"{name}.self_attn.o_proj.weight", hidden, width)
        scale = self._read(f"{name}.self_attn_layer_scale.scale", hidden)
        return linear(graph, mixed, f"{name}.self_attn.o_proj", weight * scale[:, None])

    def _mlp(self, x: Value, name: str) -> Value:
        graph, transformer = self.graph, self.config.transformer
        hidden, inner = transformer.hidden_size, transformer.intermediate_size
        first = self._read(f"{name}.mlp.fc1.weight", inner, hidden)
        second = self._read(f"{name}.mlp.fc2.weight", hidden, inner)
        scale = self._read(f"{name}.mlp_layer_scale.scale", hidden)
        y = graph.op("Gelu", [linear(graph, x, f"{name}.mlp.fc1", first)])
        return linear(graph, y, f"{name}.mlp.fc2", second * scale[:, None])

    def _downsample(self, x: Value) -> Value:
        """Convolve x (T, hidden) down to frames (F, hidden); the padding repeats the edges."""
        graph, config = self.graph, self.config
        hidden = config.transformer.hidden_size
        stride = config.samples_per_frame // math.prod(config.upsampling_ratios)
        taps = 2 * stride
        kernel = self._read("downsample.conv.weight", hidden, hidden, taps)
        x = graph.op("Unsqueeze", [x, graph.constant([0], np.int64)])
        x = self._pad(graph.op("Transpose", [x], perm=[0, 2, 1]), taps - stride, stride, "edge")
        weight = graph.weight("downsample.conv.weight", kernel)
        x = graph.op("Conv", [x, weight], kernel_shape=[taps], strides=[stride])
        x = graph.op("Transpose", [x], perm=[0, 2, 1])
        return graph.op("Squeeze", [x, graph.constant([0], np.int64)])

    def _quantize(self, x: Value, part: str, count: int) -> list[Value]:
        """Return the codes (F, 1) of ``count`` residual quantizers, all starting from x."""
        graph, config = self.graph, self.config
        width = config.codebook_dim
        name = f"{_quantizer(part)}.input_proj.weight".removeprefix("encoder.")
        projection = self._read(name, width, config.transformer.hidden_size, 1)
        residual = linear(graph, x, f"{part}.input_proj", projection[:, :, 0])
        codes = []
        for layer in range(count):
            book = f"{_quantizer(part)}.layers.{layer}.codebook".removeprefix("encoder.")
            usage = self._read(f"{book}.cluster_usage", config.codebook_size)
            total = self._read(f"{book}.embed_sum", config.codebook_size, width)
            table = centroids(total, usage)
            code = self._nearest(residual, f"{part}.{layer}", table)
            codes.append(code)
            if layer < count - 1:
                flat = graph.op("Squeeze", [code, graph.constant([1], np.int64)])
                rows = graph.weight(f"{part}.{layer}.centroids", table)
                residual = graph.op("Sub", [residual, graph.op("Gather", [rows, flat], axis=0)])
        return codes

    def _nearest(self, x: Value, name: str, table: AnyArray) -> Value:
        """Return the first index (F, 1) of the centroid nearest to each row of x (F, D).

        |x - c|^2 without its common part |x|^2 is |c|^2 - 2 x c, one matrix product instead of F
        times the table; in double precision, because the difference of the two terms is small.
        """
        graph = self.graph
        double = table.astype(np.float64)
        turned = graph.weight(f"{name}.turned", np.ascontiguousarray(-2 * double.T))
        norms = graph.weight(f"{name}.norms", (double**2).sum(1))
        product = graph.op("MatMul", [graph.cast(x, np.float64), turned])
        distances = graph.op("Add", [product, norms])
        return graph.op("ArgMin", [distances], axis=1, keepdims=1)


def _quantizer(part: str) -> str:
    return f"encoder.quantizer.{part}_residual_vector_quantizer"
