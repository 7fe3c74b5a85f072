"""The two encoders of reference clips: samples (S,) to codes, and samples to an x-vector.

Codec encoder, samples of any length to codes (F, G), F = ceil(S / 1920)::

    samples ─ conv ─ 4 x (residual unit, ELU, strided conv) ─ ELU ─ conv ─┐  channel-major, to 25 Hz
    ┌─────────────────────────────────────────────────────────────────────┘
    └ transformer ─ strided conv ─ residual quantizers ─ codes                to 12.5 Hz

All convolutions are causal; a strided one pads its own input on the right until the last partial
hop is whole, so the padding depends on the length and is computed in the graph.

Speaker encoder::

    samples ─ log-mel ─ conv ─ 3 x SE-Res2Net ─ all three joined ─ conv ─┐      channel-major
    ┌────────────────────────────────────────────────────────────────────┘
    └ attentive mean and deviation over time ─ linear ─ x-vector (D,)

Ported from: huggingface/transformers modeling_mimi.py MimiModel.encode, of which the official
package keeps the first quantizers, and which does not apply the configured attention window either;
QwenLM/Qwen3-TTS modeling_qwen3_tts.py mel_spectrogram and Qwen3TTSSpeakerEncoder; librosa
filters.mel with its defaults (Slaney's scale and area normalisation).
"""

import math
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import CodecEncoderConfig, SpeakerEncoderConfig
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.tensor_graph import TensorGraph

CODEC_ENCODER: Final = "codec_encoder"
SPEAKER_ENCODER: Final = "speaker_encoder"

WINDOW_SAMPLES: Final = 1024
_HOP_SAMPLES: Final = 256
_NUM_BINS: Final = WINDOW_SAMPLES // 2 + 1
# Added under the root of the magnitude.
_MAGNITUDE_FLOOR: Final = 1e-9
_MEL_FLOOR: Final = 1e-5
_VARIANCE_FLOOR = 1e-12
# Slaney's scale is linear up to 1 kHz and has 27 steps per factor of 6.4 above it.
_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27


def build_codec_encoder(
    codec: TensorFile, config: CodecEncoderConfig, num_groups: int, directory: Path
) -> None:
    """Write ``codec_encoder.onnx`` for the first ``num_groups`` code groups."""
    with GraphBuilder(CODEC_ENCODER, directory) as graph:
        _CodecEncoder(graph, codec, "encoder", config).build(num_groups)


def build_speaker_encoder(main: TensorFile, config: SpeakerEncoderConfig, directory: Path) -> None:
    """Write ``speaker_encoder.onnx``."""
    with GraphBuilder(SPEAKER_ENCODER, directory) as graph:
        _SpeakerEncoder(graph, main, "speaker_encoder", config).build()


def ignored_encoder_tensors(config: CodecEncoderConfig, num_groups: int) -> dict[str, str]:
    """Return the tensors (patterns) that encoding into ``num_groups`` groups does not need."""
    ignored = {
        "encoder.quantizer.*.output_proj.weight": "turns codes into features; not for encoding",
        "encoder.quantizer.*.codebook.initialized": "a flag of training",
    }
    first = num_groups - config.num_semantic_quantizers
    for layer in range(first, config.num_quantizers - config.num_semantic_quantizers):
        pattern = f"encoder.{_quantizer('acoustic')}.layers.{layer}.codebook.*"
        ignored[pattern] = "a frame has fewer groups than the quantizer has layers"
    return ignored


def _quantizer(part: str) -> str:
    return f"quantizer.{part}_residual_vector_quantizer"


class _CodecEncoder(TensorGraph):
    """One codec encoder graph under construction."""

    config: CodecEncoderConfig

    def build(self, num_groups: int) -> None:
        graph, config = self.graph, self.config
        samples = graph.input("samples", np.float32, ["S"])
        x = graph.op("Reshape", samples, [1, config.audio_channels, -1])
        x = self._convolutions(x)  # (1, hidden, T)
        x = self._downsample(self._transformer(self.time_major(x)))  # (F, hidden)
        semantic = config.num_semantic_quantizers
        columns = self._quantize(x, "semantic", semantic)
        columns += self._quantize(x, "acoustic", num_groups - semantic)
        codes = graph.op("Concat", columns, axis=1)
        graph.output(codes, "codes", np.int64, [None, num_groups])

    def _convolutions(self, x: Value) -> Value:
        config, name = self.config, "encoder.layers.{}.conv".format
        width, hidden = config.num_filters, config.transformer.hidden_size
        widths, taps = (config.audio_channels, width), config.kernel_size
        x = self.conv(x, name(0), widths, taps, pads=[taps - 1, 0])
        layer = 1
        for rate in reversed(config.upsampling_ratios):
            for unit in range(config.num_residual_layers):
                block, inner = f"encoder.layers.{layer}.block", width // config.compress
                dilation, taps = config.dilation_growth_rate**unit, config.residual_kernel_size
                y = self._elu_conv(x, f"{block}.1.conv", (width, inner), taps, dilation=dilation)
                x = x + self._elu_conv(y, f"{block}.3.conv", (inner, width), 1)
                layer += 1
            x = self._elu_conv(x, name(layer + 1), (width, 2 * width), 2 * rate, stride=rate)
            width *= 2
            layer += 2  # the ELU, the convolution
        return self._elu_conv(x, name(layer + 1), (width, hidden), config.last_kernel_size)

    def _elu_conv(
        self,
        x: Value,
        name: str,
        widths: tuple[int, int],
        taps: int,
        stride: int = 1,
        dilation: int = 1,
    ) -> Value:
        """Apply an ELU to x (1, D_in, T) and convolve it causally: (1, D_out, ceil(T / stride))."""
        x = self.graph.op("Elu", x)
        before = (taps - 1) * dilation + 1 - stride
        if stride > 1:
            x, before = self._pad(x, before, stride, mode="constant"), 0
        attributes = {"pads": [before, 0], "strides": [stride], "dilations": [dilation]}
        return self.conv(x, name, widths, taps, **attributes)

    def _pad(self, x: Value, before: int, stride: int, mode: str) -> Value:
        """Pad the time axis of x (1, D, T): ``before``, and after it up to a whole hop."""
        op = self.graph.op
        # A floor Mod has the divisor's sign: this is the number of samples to the next multiple.
        after = op("Mod", op("Neg", op("Shape", x, start=2, end=3)), [stride])
        return op("Pad", x, op("Concat", [before], after, axis=0), 0.0, [2], mode=mode)

    def _transformer(self, x: Value) -> Value:
        """Run the layers over x (T, hidden), without a last norm."""
        graph, transformer = self.graph, self.config.transformer
        width, inner = transformer.hidden_size, transformer.intermediate_size
        num_positions = graph.length(x, 0)
        tables = self.rotary(0, num_positions, transformer)
        mask = self.causal_mask(num_positions, num_positions, window=None)
        for layer in range(transformer.num_layers):
            name = f"encoder_transformer.layers.{layer}"
            with graph.scope(name):
                y = self.layer_norm(x, f"{name}.input_layernorm", width, transformer.norm_eps)
                query_key_value = self.query_key_value(y, name, transformer, tables)
                y = self.attend(*query_key_value, mask, transformer)
                x = x + self.attention_output(y, name, transformer)
                norm = f"{name}.post_attention_layernorm"
                y = self.layer_norm(x, norm, width, transformer.norm_eps)
                first = self.read(f"{name}.mlp.fc1.weight", inner, width)
                second = self.read(f"{name}.mlp.fc2.weight", width, inner)
                scale = self.read(f"{name}.mlp_layer_scale.scale", width)
                y = graph.op("Gelu", self.linear(y, f"{name}.mlp.fc1", first))
                x = x + self.linear(y, f"{name}.mlp.fc2", second * scale[:, None])
        return x

    def _downsample(self, x: Value) -> Value:
        """Convolve x (T, hidden) down to frames (F, hidden); the padding repeats the edges."""
        config, hidden = self.config, self.config.transformer.hidden_size
        stride = config.samples_per_frame // math.prod(config.upsampling_ratios)
        x = self._pad(self.channel_major(x), stride, stride, "edge")
        weight = self.stored("downsample.conv.weight", hidden, hidden, 2 * stride)
        x = self.graph.op("Conv", x, weight, kernel_shape=[2 * stride], strides=[stride])
        return self.time_major(x)

    def _quantize(self, x: Value, part: str, count: int) -> list[Value]:
        """Return the codes (F, 1) of ``count`` residual quantizers, all starting from x."""
        graph, config, width = self.graph, self.config, self.config.codebook_dim
        shape = (width, config.transformer.hidden_size, 1)
        projection = self.read(f"{_quantizer(part)}.input_proj.weight", *shape)
        residual = self.linear(x, f"{part}.input_proj", projection[:, :, 0])
        codes = []
        for layer in range(count):
            book = f"{_quantizer(part)}.layers.{layer}.codebook"
            table = self.codebook(book, "embed_sum", config.codebook_size, width)
            codes.append(self._nearest(residual, f"{part}.{layer}", table))
            if layer < count - 1:
                rows = graph.weight(f"{part}.{layer}.centroids", table)
                indices = graph.op("Squeeze", codes[-1], [1])
                residual = residual - graph.op("Gather", rows, indices, axis=0)
        return codes

    def _nearest(self, x: Value, name: str, table: AnyArray) -> Value:
        """Return the first index (F, 1) of the centroid nearest to each row of x (F, D).

        |x - c|^2 without its common part |x|^2 is |c|^2 - 2 x c, one matrix product instead of F
        times the table; in double precision, because the difference of the two terms is small.
        """
        graph, double = self.graph, table.astype(np.float64)
        transposed = graph.weight(f"{name}.transposed", -2 * double.T)
        norms = graph.weight(f"{name}.norms", (double**2).sum(1))
        distances = graph.cast(x, np.float64) @ transposed + norms
        return graph.op("ArgMin", distances, axis=1, keepdims=1)


class _SpeakerEncoder(TensorGraph):
    """One speaker encoder graph under construction."""

    config: SpeakerEncoderConfig

    def build(self) -> None:
        graph, config = self.graph, self.config
        channels = config.channels
        shapes = list(zip(config.kernel_sizes, config.dilations, strict=True))
        x = self._log_mel(graph.input("samples", np.float32, ["S"]))  # (1, mels, T)
        x = self._tdnn(x, "blocks.0", (config.num_mels, channels[0]), *shapes[0])
        outputs = []
        for block in range(1, len(channels) - 1):
            x = self._block(x, block, *shapes[block])
            outputs.append(x)
        widths = (sum(channels[1:-1]), channels[-1])
        x = self._tdnn(graph.op("Concat", outputs, axis=1), "mfa", widths, *shapes[-1])
        x = self.conv(self._pool(x), "fc", (2 * channels[-1], config.x_vector_size))
        x_vector = graph.op("Reshape", x, [-1])
        graph.output(x_vector, "x_vector", np.float32, [config.x_vector_size])

    def _log_mel(self, samples: Value) -> Value:
        """Return the log-mel spectrogram (1, mels, S // 256) of samples (S,).

        The transform is a matrix product in double precision: the logarithm brings out the quietest
        bands, which a float32 sum over a loud frame would drown.
        """
        graph, config = self.graph, self.config
        side = (WINDOW_SAMPLES - _HOP_SAMPLES) // 2
        padded = graph.op("Pad", samples, [side, side], mode="reflect")
        count = graph.op("Div", graph.op("Squeeze", graph.op("Shape", samples)), _HOP_SAMPLES)
        starts = graph.op("Range", 0, count, 1) * _HOP_SAMPLES
        places = graph.op("Unsqueeze", starts, [1]) + np.arange(WINDOW_SAMPLES)
        windows = graph.cast(graph.op("Gather", padded, places, axis=0), np.float64)
        spectrum = windows @ windowed_dft()
        squares = graph.ops("Split", spectrum * spectrum, outputs=2, axis=1, num_outputs=2)
        power = graph.op("Add", *squares) + np.float64(_MAGNITUDE_FLOOR)
        magnitude = graph.cast(graph.op("Sqrt", power), np.float32)
        mels = magnitude @ mel_filters(config.num_mels, config.sample_rate_hz).astype(np.float32)
        return self.channel_major(graph.op("Log", graph.op("Max", mels, _MEL_FLOOR)))

    def _tdnn(
        self, x: Value, name: str, widths: tuple[int, int], taps: int = 1, dilation: int = 1
    ) -> Value:
        """Convolve x (1, D_in, T) into (1, D_out, T) and rectify; the padding reflects."""
        padding = (taps - 1) * dilation
        if padding:
            sides = [padding // 2, padding - padding // 2]
            x = self.graph.op("Pad", x, sides, 0.0, [2], mode="reflect")
        y = self.conv(x, f"{name}.conv", widths, taps, dilations=[dilation])
        return self.graph.op("Relu", y)

    def _block(self, x: Value, block: int, taps: int, dilation: int) -> Value:
        """Add a squeeze-excitation Res2Net branch to x."""
        graph, config, name = self.graph, self.config, f"blocks.{block}"
        before, width = config.channels[block - 1], config.channels[block]
        with graph.scope(name):
            y = self._tdnn(x, f"{name}.tdnn1", (before, width))
            y = self._tdnn(self._res2net(y, block, taps, dilation), f"{name}.tdnn2", (width, width))
            squeezed, block_name = self._over_time("ReduceMean", y), f"{name}.se_block"
            squeezed = self.conv(squeezed, f"{block_name}.conv1", (width, config.se_channels))
            squeezed = graph.op("Relu", squeezed)
            gate = self.conv(squeezed, f"{block_name}.conv2", (config.se_channels, width))
            return y * graph.op("Sigmoid", gate) + x

    def _res2net(self, x: Value, block: int, taps: int, dilation: int) -> Value:
        """Convolve groups of channels, each after adding the result of the group before."""
        scale = self.config.res2net_scale
        width = self.config.channels[block] // scale
        first, *others = self.graph.ops("Split", x, outputs=scale, axis=1, num_outputs=scale)
        results = [first]
        for index, group in enumerate(others):
            carried = group + results[-1] if index > 0 else group
            name = f"blocks.{block}.res2net_block.blocks.{index}"
            results.append(self._tdnn(carried, name, (width, width), taps, dilation))
        return self.graph.op("Concat", results, axis=1)

    def _pool(self, x: Value) -> Value:
        """Return (1, 2 D, 1): mean and deviation of x (1, D, T), weighted by attention."""
        graph, width = self.graph, self.config.channels[-1]
        inner = self.config.attention_channels
        mean = self._over_time("ReduceMean", x)
        centered = x - mean
        deviation = self._root(self._over_time("ReduceMean", centered * centered))
        shape = graph.op("Shape", x)
        context = [x, *(graph.op("Expand", part, shape) for part in (mean, deviation))]
        hidden = self._tdnn(graph.op("Concat", context, axis=1), "asp.tdnn", (3 * width, inner))
        scores = self.conv(graph.op("Tanh", hidden), "asp.conv", (inner, width))
        weights = graph.op("Softmax", scores, axis=2)
        mean = self._over_time("ReduceSum", weights * x)
        centered = x - mean
        deviation = self._root(self._over_time("ReduceSum", weights * (centered * centered)))
        return graph.op("Concat", mean, deviation, axis=1)

    def _over_time(self, operator: str, x: Value) -> Value:
        return self.graph.op(operator, x, [2], keepdims=1)

    def _root(self, variance: Value) -> Value:
        return self.graph.op("Sqrt", self.graph.op("Max", variance, _VARIANCE_FLOOR))


def windowed_dft() -> NDArray[np.float64]:
    """Return (1024, 1026): a frame times this is its spectrum's real parts, then imaginary parts.

    The periodic Hann window is folded in.
    """
    time = np.arange(WINDOW_SAMPLES)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * time / WINDOW_SAMPLES)
    # Products are reduced to one turn before the cosine: exact, where large angles would not be.
    turns = np.outer(time, np.arange(_NUM_BINS)) % WINDOW_SAMPLES
    angles = 2 * np.pi * turns / WINDOW_SAMPLES
    transform = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    return np.asarray(window[:, None] * transform, np.float64)


def mel_filters(num_mels: int, sample_rate_hz: int) -> NDArray[np.float64]:
    """Return triangular filters (513, num_mels) of equal area from 0 Hz to half the sample rate."""
    top_hz = sample_rate_hz / 2
    top_mel = _BREAK_MEL + math.log(top_hz / _BREAK_HZ) / _LOG_STEP
    mels = np.linspace(0.0, top_mel, num_mels + 2)
    logarithmic = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    edges = np.where(mels < _BREAK_MEL, _HZ_PER_MEL * mels, logarithmic)
    bins = np.linspace(0.0, top_hz, _NUM_BINS)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * 2.0 / (edges[2:] - edges[:-2]), np.float64)
