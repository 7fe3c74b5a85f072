"""What a frame costs at least: bytes that must be read, operations that must be done."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from wyoming_qwen3tts.builder.config import CodecDecoderConfig

# These take single rows of their weights (embedding tables, rotary tables).
_ROW_READERS: Final = frozenset({"Gather", "GroupQueryAttention"})
_PRE_CONV_TAPS: Final = 3
_CONV_TAPS: Final = 7
_NUM_RESIDUAL_UNITS: Final = 3
_CONVNEXT_EXPANSION: Final = 4


def weight_bytes_per_run(graph_path: Path) -> int:
    """Return the bytes of weights that one run of a graph reads from memory at least.

    A weight counts once for each operator that takes it. So the code predictor's layers, which its
    graph unrolls, count once per group, and each of its heads once. Tables of which rows are taken
    do not count, nor does the cache.
    """
    graph = onnx.load(str(graph_path), load_external_data=False).graph
    sizes = {tensor.name: _num_bytes(tensor) for tensor in graph.initializer}
    total = 0
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in sizes:
            # The runtime widens a stored weight once, when it loads the graph.
            sizes[node.output[0]] = _widened_bytes(node, graph, sizes)
        elif node.op_type not in _ROW_READERS:
            total += sum(sizes.get(name, 0) for name in node.input)
    return total


def _num_bytes(tensor: TensorProto) -> int:
    for entry in tensor.external_data:
        if entry.key == "length":
            return int(entry.value)
    return int(math.prod(tensor.dims)) * _item_bytes(tensor.data_type)


def _widened_bytes(node: onnx.NodeProto, graph: onnx.GraphProto, sizes: Mapping[str, int]) -> int:
    source = next(tensor for tensor in graph.initializer if tensor.name == node.input[0])
    target = next(int(attribute.i) for attribute in node.attribute if attribute.name == "to")
    return sizes[source.name] * _item_bytes(target) // _item_bytes(source.data_type)


def _item_bytes(onnx_type: int) -> int:
    return int(np.dtype(helper.tensor_dtype_to_np_dtype(onnx_type)).itemsize)


def codec_operations_per_frame(config: CodecDecoderConfig) -> int:
    """Return the multiplications and additions that decoding one frame takes.

    Convolutions count as the sums that define them; fast algorithms need fewer operations and can
    undercut the floor that follows. Attention and activations are left out: they are a few per
    mille. Linear maps with nothing between them count as one, since they can be folded.
    """
    transformer, latent = config.transformer, config.latent_dim
    hidden = transformer.hidden_size
    total = _PRE_CONV_TAPS * config.codebook_dim * hidden
    total += (
        transformer.num_layers
        * hidden
        * (2 * transformer.query_size + 2 * transformer.kv_size + 3 * transformer.intermediate_size)
    )
    rate, width = 1, hidden  # positions per frame, and their width
    for ratio in config.upsampling_ratios:
        total += rate * ratio * width * latent
        rate, width = rate * ratio, latent
        total += rate * (_CONV_TAPS * latent + 2 * _CONVNEXT_EXPANSION * latent**2)
    total += rate * _CONV_TAPS * latent * config.decoder_dim
    width = config.decoder_dim
    for ratio in config.upsample_rates:
        total += rate * width * (width // 2) * 2 * ratio
        rate, width = rate * ratio, width // 2
        total += rate * _NUM_RESIDUAL_UNITS * (_CONV_TAPS + 1) * width**2
    total += rate * _CONV_TAPS * width
    return 2 * total
