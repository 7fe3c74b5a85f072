"""The codec's decoder for training; parameters are named as in the official checkpoint."""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from script._demo_voice.language_network import SwiGlu
from script._demo_voice.quantizer import ResidualCodebooks

_EPSILON: Final = 1e-5
_CONV_KERNEL: Final = 7
_DILATIONS: Final = (1, 3, 9)
# Fresh blocks shall do something: LayerScale and ConvNeXt begin with these gains.
_CONVNEXT_GAIN: Final = 0.3


class CausalConv(nn.Module):
    """Convolution that sees the past only."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self._before = (kernel - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T)."""
        return self.conv(functional.pad(x, (self._before, 0)))


class CausalUpsample(nn.Module):
    """Transposed convolution whose overhang is dropped."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)
        self._overhang = kernel - stride

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T * stride)."""
        y = self.conv(x)
        return y[..., : y.shape[-1] - self._overhang] if self._overhang else y


class Snake(nn.Module):
    """x + sin(x exp(alpha))^2 / exp(beta), per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        alpha = torch.exp(self.alpha)[:, None]
        gain = 1 / (torch.exp(self.beta)[:, None] + 1e-9)
        return x + gain * torch.sin(x * alpha) ** 2


class ConvNeXt(nn.Module):
    """Depthwise convolution and feed-forward around a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, _CONV_KERNEL, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), _CONVNEXT_GAIN))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        y = self.norm(self.dwconv(x).mT)
        y = self.gamma * self.pwconv2(functional.gelu(self.pwconv1(y)))
        return x + y.mT


class ResidualUnit(nn.Module):
    """Two activations and convolutions around a residual."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.act2 = Snake(channels), Snake(channels)
        self.conv1 = CausalConv(channels, channels, _CONV_KERNEL, dilation)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class DecoderBlock(nn.Module):
    """Upsampling by a rate at half the channels, and three residual units."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        units = (ResidualUnit(half, dilation) for dilation in _DILATIONS)
        upsample = CausalUpsample(channels, half, 2 * rate, rate)
        self.block = nn.Sequential(Snake(channels), upsample, *units)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C / 2, T * rate)."""
        return self.block(x)


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, _EPSILON)


class _Scale(nn.Module):
    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), gain))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class _Attention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, heads = config["hidden_size"], config["num_attention_heads"]
        self._head_width, self._theta = config["head_dim"], config["rope_theta"]
        inner = heads * self._head_width
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(width, inner, bias=False) for _ in range(3)
        )
        self.o_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            layer(x).unflatten(-1, (-1, self._head_width)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(
            self._rotated(queries), self._rotated(keys), values, is_causal=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _rotated(self, x: Tensor) -> Tensor:
        rates = self._theta ** (-torch.arange(0, self._head_width, 2) / self._head_width)
        angles = torch.arange(x.shape[-2])[:, None] * rates
        first, second = x.chunk(2, -1)
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class _Layer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, gain = config["hidden_size"], config["layer_scale_initial_scale"]
        self.self_attn = _Attention(config)
        self.mlp = SwiGlu(width, config["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = _RmsNorm(width), _RmsNorm(width)
        self.self_attn_layer_scale, self.mlp_layer_scale = _Scale(width, gain), _Scale(width, gain)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x)))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class _Transformer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        latent, width = config["latent_dim"], config["hidden_size"]
        self.input_proj, self.output_proj = nn.Linear(latent, width), nn.Linear(width, latent)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = _RmsNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x)
        return self.output_proj(self.norm(x))


class _Codebook(nn.Module):
    embedding_sum: Tensor
    cluster_usage: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("embedding_sum", torch.zeros(size, width))
        self.register_buffer("cluster_usage", torch.ones(size))


class _VectorQuantizer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = _Codebook(size, width)

    @property
    def book(self) -> Tensor:
        return self._codebook.embedding_sum


class _Vq(nn.Module):
    def __init__(self, num_books: int, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_VectorQuantizer(size, width) for _ in range(num_books))


class _Rvq(nn.Module):
    def __init__(self, num_books: int, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["codebook_dim"]
        self.vq = _Vq(num_books, config["codebook_size"], width // 2)
        self.input_proj = nn.Conv1d(width, width // 2, 1, bias=False)  # belongs to the layout only
        self.output_proj = nn.Conv1d(width // 2, width, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """(B, books, F) -> (B, codebook_dim, F)."""
        books = [layer.book for layer in self.vq.layers]
        total = sum(book[codes[:, index]] for index, book in enumerate(books))
        return self.output_proj(total.mT)


class _Quantizer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.rvq_first = _Rvq(1, config)
        self.rvq_rest = _Rvq(config["num_quantizers"] - 1, config)

    def forward(self, codes: Tensor) -> Tensor:
        return self.rvq_first(codes[:, :1]) + self.rvq_rest(codes[:, 1:])


class CodecDecoder(nn.Module):
    """Codes -> samples; prefix its names by ``decoder.``."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Make an untrained decoder from a ``decoder_config``."""
        super().__init__()
        latent, channels = config["latent_dim"], config["decoder_dim"]
        self.quantizer = _Quantizer(config)
        self.pre_conv = CausalConv(config["codebook_dim"], latent, 3)
        self.pre_transformer = _Transformer(config)
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalUpsample(latent, latent, rate, rate), ConvNeXt(latent)])
            for rate in config["upsampling_ratios"]
        )
        blocks: list[nn.Module] = [CausalConv(latent, channels, _CONV_KERNEL)]
        for rate in config["upsample_rates"]:
            blocks.append(DecoderBlock(channels, rate))
            channels //= 2
        blocks += [Snake(channels), CausalConv(channels, 1, _CONV_KERNEL)]
        self.decoder = nn.ModuleList(blocks)

    def adopt(self, codebooks: ResidualCodebooks) -> None:
        """Take over the codebooks, which stay as they are from then on."""
        layers = [*self.quantizer.rvq_first.vq.layers, *self.quantizer.rvq_rest.vq.layers]
        for layer, book in zip(layers, codebooks.books, strict=True):
            layer.book.copy_(book)
        for rvq in (self.quantizer.rvq_first, self.quantizer.rvq_rest):
            rvq.input_proj.requires_grad_(False)
            nn.init.orthogonal_(rvq.output_proj.weight)

    def latents(self, codes: Tensor) -> Tensor:
        """(B, G, F) -> (B, latent, F): all that looks far back."""
        hidden = self.pre_conv(self.quantizer(codes)).mT
        return self.pre_transformer(hidden).mT

    def waveform(self, latents: Tensor) -> Tensor:
        """(B, latent, F) -> (B, F * 1920)."""
        x = latents
        for upsample, convnext in self.upsample:
            x = convnext(upsample(x))
        for block in self.decoder:
            x = block(x)
        return x.squeeze(1)

    def forward(self, codes: Tensor) -> Tensor:
        """(B, G, F) -> (B, F * 1920), clamped."""
        return self.waveform(self.latents(codes)).clamp(-1, 1)
