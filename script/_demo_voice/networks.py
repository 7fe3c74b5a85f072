"""Talker, code predictor and codec decoder for training, as functions of their weights.

``Weights`` holds tensors by their official names, so a checkpoint is what was trained.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from script._demo_voice.texts import small_letters

Weights = dict[str, Tensor]
_TALKER: Final = "talker.model"
_PREDICTOR: Final = "talker.code_predictor"


def new_talker(shapes: Mapping[str, Sequence[int]]) -> Weights:
    """Return initial weights of everything in ``model.safetensors``."""
    weights: Weights = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(*shape)
        elif name.endswith("bias"):
            weights[name] = torch.zeros(*shape)
        elif "embedding" in name:
            weights[name] = torch.randn(*shape) * (1.0 if "text_embedding" in name else 0.3)
        else:
            weights[name] = torch.randn(*shape) * 0.8 * shape[1] ** -0.5
    for stack in (_TALKER, f"{_PREDICTOR}.model"):
        inner = [n for n in weights if n.startswith(f"{stack}.layers.")]
        closing = [n for n in inner if n.endswith(("o_proj.weight", "down_proj.weight"))]
        for name in closing:
            weights[name] *= len(closing) ** -0.5
    return weights


def new_decoder(shapes: Mapping[str, Sequence[int]], gain: float, books: Tensor) -> Weights:
    """Return initial weights of the codec's decoder, with codebooks (G, C, W)."""
    weights: Weights = {}
    for name, shape in shapes.items():
        last = name.rpartition(".")[2]
        if last in {"alpha", "beta"} or name.endswith("norm.bias"):
            weights[name] = torch.zeros(*shape)
        elif last == "cluster_usage" or name.endswith("norm.weight"):
            weights[name] = torch.ones(*shape)
        elif last in {"scale", "gamma"}:
            weights[name] = torch.full(tuple(shape), gain if last == "scale" else 0.3)
        else:
            main = shapes[name.replace(".bias", ".weight")]
            bound = math.prod(main[1:]) ** -0.5
            weights[name] = torch.empty(*shape).uniform_(-bound, bound)
        if "output_proj.weight" in name and "quantizer" in name:
            nn.init.orthogonal_(weights[name])
    for name, book in zip(_codebooks(len(books)), books, strict=True):
        weights[name] = book.clone()
    return weights


def is_trained(name: str) -> bool:
    """Return whether a tensor of the decoder is trained: not the codebooks."""
    return "_codebook" not in name and not ("quantizer" in name and "input_proj" in name)


def talker_hidden(w: Weights, recipe: Any, batch: Any, *, training: bool) -> Tensor:
    """Return (B, T, D) of a batch: text ids, codec ids (-1: none), codes of frames (B, T, G)."""
    hidden = functional.silu(
        _linear(w, "talker.text_projection.linear_fc1", w[f"{_TALKER}.text_embedding.weight"])
    )
    table = _linear(w, "talker.text_projection.linear_fc2", hidden)
    codec = w[f"{_TALKER}.codec_embedding.weight"]
    x = functional.embedding(_small_letters()[batch.text], table)
    x = x + codec[batch.codec.clamp(min=0)] * (batch.codec >= 0)[..., None]
    frames = codec[batch.frames[..., 0]]
    for group in range(1, batch.frames.shape[-1]):
        frames = frames + _group_table(w, group)[batch.frames[..., group]]
    x = x + frames * batch.is_frame[..., None]
    dropout = recipe.dropout if training else 0.0
    return _stack(w, _TALKER, x, recipe.num_layers, recipe.head_width, dropout)


def predict_groups(
    w: Weights, recipe: Any, hidden: Tensor, codes: Tensor, *, training: bool
) -> list[Tensor]:
    """Return the logits (N, C) of groups 1 .. G-1 from hidden (N, D) and codes (N, G)."""
    num_groups = codes.shape[1]
    tables = [w[f"{_TALKER}.codec_embedding.weight"]]
    tables += [_group_table(w, group) for group in range(1, num_groups - 1)]
    inputs = [hidden, *(table[codes[:, k]] for k, table in enumerate(tables))]
    x = torch.stack(inputs, 1)
    if f"{_PREDICTOR}.small_to_mtp_projection.weight" in w:
        x = _linear(w, f"{_PREDICTOR}.small_to_mtp_projection", x)
    dropout = recipe.dropout if training else 0.0
    layers, width = recipe.predictor_layers, recipe.predictor_head_width
    x = _stack(w, f"{_PREDICTOR}.model", x, layers, width, dropout)
    return [_linear(w, f"{_PREDICTOR}.lm_head.{k}", x[:, k + 1]) for k in range(num_groups - 1)]


def codec_latents(w: Weights, config: dict[str, Any], codes: Tensor) -> Tensor:
    """(B, G, F) -> (B, latent, F): everything that looks far back."""
    names = _codebooks(codes.shape[1])
    embedded = [w[name][codes[:, group]] for group, name in enumerate(names)]
    quantizer = "decoder.quantizer"
    first = _conv(w, f"{quantizer}.rvq_first.output_proj", embedded[0].mT)
    rest = _conv(w, f"{quantizer}.rvq_rest.output_proj", torch.stack(embedded[1:]).sum(0).mT)
    name, head = "decoder.pre_transformer", config["head_dim"]
    x = _linear(w, f"{name}.input_proj", _conv(w, "decoder.pre_conv.conv", first + rest).mT)
    for index in range(config["num_hidden_layers"]):
        layer = f"{name}.layers.{index}"
        y = _attention(w, layer, _norm(w, f"{layer}.input_layernorm", x, 1e-5), head, 1e4)
        x = x + w[f"{layer}.self_attn_layer_scale.scale"] * y
        y = _swiglu(w, layer, _norm(w, f"{layer}.post_attention_layernorm", x, 1e-5))
        x = x + w[f"{layer}.mlp_layer_scale.scale"] * y
    return _linear(w, f"{name}.output_proj", _norm(w, f"{name}.norm", x, 1e-5)).mT


def codec_waveform(w: Weights, config: dict[str, Any], x: Tensor) -> Tensor:
    """(B, latent, F) -> (B, F * 1920)."""
    for index, rate in enumerate(config["upsampling_ratios"]):
        x = _upsample(w, f"decoder.upsample.{index}.0.conv", x, rate)
        name = f"decoder.upsample.{index}.1"
        y = _conv(w, f"{name}.dwconv.conv", x, groups=x.shape[1]).mT
        shape, scale, shift = (y.shape[-1],), w[f"{name}.norm.weight"], w[f"{name}.norm.bias"]
        y = functional.layer_norm(y, shape, scale, shift, 1e-6)
        y = _linear(w, f"{name}.pwconv2", functional.gelu(_linear(w, f"{name}.pwconv1", y)))
        x = x + (w[f"{name}.gamma"] * y).mT
    x = _conv(w, "decoder.decoder.0.conv", x)
    rates = config["upsample_rates"]
    for index, rate in enumerate(rates, 1):
        name = f"decoder.decoder.{index}.block"
        x = _upsample(w, f"{name}.1.conv", _snake(w, f"{name}.0", x), rate)
        for unit, dilation in enumerate((1, 3, 9), 2):
            y = _snake(w, f"{name}.{unit}.act1", x)
            y = _conv(w, f"{name}.{unit}.conv1.conv", y, dilation)
            x = x + _conv(w, f"{name}.{unit}.conv2.conv", _snake(w, f"{name}.{unit}.act2", y))
    x = _snake(w, f"decoder.decoder.{len(rates) + 1}", x)
    return _conv(w, f"decoder.decoder.{len(rates) + 2}.conv", x).squeeze(1)


def _codebooks(num_groups: int) -> list[str]:
    name = "decoder.quantizer.rvq_{}.vq.layers.{}._codebook.embedding_sum"
    return [name.format("first", 0), *(name.format("rest", k) for k in range(num_groups - 1))]


@cache
def _small_letters() -> Tensor:
    return torch.tensor(small_letters())


def _group_table(w: Weights, group: int) -> Tensor:
    return w[f"{_PREDICTOR}.model.codec_embedding.{group - 1}.weight"]


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _norm(w: Weights, name: str, x: Tensor, epsilon: float = 1e-6) -> Tensor:
    weight = w[f"{name}.weight"].to(x.dtype)
    return functional.rms_norm(x, (x.shape[-1],), weight, epsilon)


def _rotate(x: Tensor, theta: float) -> Tensor:
    """Rotate the halves of (..., T, K) by their positions."""
    width = x.shape[-1]
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(x.shape[-2])[:, None] * rates
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _attention(w: Weights, layer: str, x: Tensor, head_width: int, theta: float) -> Tensor:
    name = f"{layer}.self_attn"
    queries, keys, values = (
        _linear(w, f"{name}.{part}_proj", x).unflatten(-1, (-1, head_width)).transpose(1, 2)
        for part in "qkv"
    )
    if f"{name}.q_norm.weight" in w:
        queries, keys = _norm(w, f"{name}.q_norm", queries), _norm(w, f"{name}.k_norm", keys)
    mixed = functional.scaled_dot_product_attention(
        _rotate(queries, theta), _rotate(keys, theta), values, is_causal=True, enable_gqa=True
    )
    return _linear(w, f"{name}.o_proj", mixed.transpose(1, 2).flatten(2))


def _swiglu(w: Weights, layer: str, x: Tensor) -> Tensor:
    gate = functional.silu(_linear(w, f"{layer}.mlp.gate_proj", x))
    return _linear(w, f"{layer}.mlp.down_proj", gate * _linear(w, f"{layer}.mlp.up_proj", x))


def _stack(
    w: Weights, name: str, x: Tensor, num_layers: int, head_width: int, dropout: float
) -> Tensor:
    for index in range(num_layers):
        layer = f"{name}.layers.{index}"
        y = _attention(w, layer, _norm(w, f"{layer}.input_layernorm", x), head_width, 1e6)
        x = x + functional.dropout(y, dropout, dropout > 0)
        y = _swiglu(w, layer, _norm(w, f"{layer}.post_attention_layernorm", x))
        x = x + functional.dropout(y, dropout, dropout > 0)
    return _norm(w, f"{name}.norm", x)


def _conv(w: Weights, name: str, x: Tensor, dilation: int = 1, groups: int = 1) -> Tensor:
    """Convolve (B, C, T); the output sees only the past."""
    weight = w[f"{name}.weight"]
    x = functional.pad(x, ((weight.shape[-1] - 1) * dilation, 0))
    return functional.conv1d(x, weight, w.get(f"{name}.bias"), dilation=dilation, groups=groups)


def _upsample(w: Weights, name: str, x: Tensor, stride: int) -> Tensor:
    y = functional.conv_transpose1d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride)
    return y[..., : x.shape[-1] * stride]


def _snake(w: Weights, name: str, x: Tensor) -> Tensor:
    """x + sin(x exp(alpha))^2 / exp(beta), per channel."""
    alpha, beta = w[f"{name}.alpha"].exp()[:, None], w[f"{name}.beta"].exp()[:, None]
    return x + torch.sin(x * alpha) ** 2 / (beta + 1e-9)
