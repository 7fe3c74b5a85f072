"""Talker and code predictor for training; parameters are named as in the official checkpoint."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from script._demo_voice.recipe import CodecRecipe, LanguageRecipe
from script._demo_voice.vocabulary import small_letters

_ROPE_THETA: Final = 1e6
_EPSILON: Final = 1e-6

Cache = dict[nn.Module, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class StackWidths:
    """Widths of one stack of layers."""

    width: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    dropout: float


class RmsNorm(nn.Module):
    """Root-mean-square norm with a scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), _EPSILON)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn the halves of (..., T, K) by the angles of positions (T,)."""
    width = x.shape[-1]
    rates = _ROPE_THETA ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = positions[:, None].float() * rates
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Attention(nn.Module):
    """Grouped-query attention with norms on queries and keys."""

    def __init__(self, widths: StackWidths) -> None:
        super().__init__()
        self.widths = widths
        queries = widths.num_heads * widths.head_width
        keys = widths.num_kv_heads * widths.head_width
        self.q_proj = nn.Linear(widths.width, queries, bias=False)
        self.k_proj = nn.Linear(widths.width, keys, bias=False)
        self.v_proj = nn.Linear(widths.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, widths.width, bias=False)
        self.q_norm = RmsNorm(widths.head_width)
        self.k_norm = RmsNorm(widths.head_width)

    def forward(self, x: Tensor, positions: Tensor, cache: Cache | None) -> Tensor:
        """(B, T, D) -> (B, T, D), causal; ``cache`` holds what came before."""
        queries = rotate(self.q_norm(self._heads(self.q_proj(x))), positions)
        keys = rotate(self.k_norm(self._heads(self.k_proj(x))), positions)
        values = self._heads(self.v_proj(x))
        if cache is not None:
            if self in cache:
                before = cache[self]
                keys = torch.cat([before[0], keys], 2)
                values = torch.cat([before[1], values], 2)
            cache[self] = (keys, values)
        causal = queries.shape[2] > 1 and keys.shape[2] == queries.shape[2]
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=causal, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.widths.head_width)).transpose(1, 2)  # (B, H, T, K)


class SwiGlu(nn.Module):
    """Gated feed-forward."""

    def __init__(self, width: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, intermediate, bias=False)
        self.up_proj = nn.Linear(width, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward, both behind a norm and around a residual."""

    def __init__(self, widths: StackWidths) -> None:
        super().__init__()
        self.self_attn = Attention(widths)
        self.mlp = SwiGlu(widths.width, widths.intermediate)
        self.input_layernorm = RmsNorm(widths.width)
        self.post_attention_layernorm = RmsNorm(widths.width)
        self._dropout = widths.dropout

    def forward(self, x: Tensor, positions: Tensor, cache: Cache | None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        attended = self.self_attn(self.input_layernorm(x), positions, cache)
        x = x + functional.dropout(attended, self._dropout, self.training)
        fed = self.mlp(self.post_attention_layernorm(x))
        return x + functional.dropout(fed, self._dropout, self.training)


class Stack(nn.Module):
    """Layers and the norm behind them."""

    def __init__(self, widths: StackWidths) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(widths) for _ in range(widths.num_layers))
        self.norm = RmsNorm(widths.width)

    def run(self, x: Tensor, positions: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D), post-norm."""
        for layer in self.layers:
            x = layer(x, positions, cache)
        return self.norm(x)


class TalkerModel(Stack):
    """The talker's layers and tables."""

    def __init__(self, widths: StackWidths, codec_rows: int, text_rows: int, text: int) -> None:
        super().__init__(widths)
        self.codec_embedding = nn.Embedding(codec_rows, widths.width)
        self.text_embedding = nn.Embedding(text_rows, text)


class PredictorModel(Stack):
    """The code predictor's layers and tables."""

    def __init__(self, widths: StackWidths, num_groups: int, size: int, talker: int) -> None:
        super().__init__(widths)
        tables = (nn.Embedding(size, talker) for _ in range(num_groups - 1))
        self.codec_embedding = nn.ModuleList(tables)


class CodePredictor(nn.Module):
    """Predicts groups 1 .. G-1 of a frame."""

    def __init__(self, widths: StackWidths, num_groups: int, size: int, talker: int) -> None:
        super().__init__()
        self.model = PredictorModel(widths, num_groups, size, talker)
        heads = (nn.Linear(widths.width, size, bias=False) for _ in range(num_groups - 1))
        self.lm_head = nn.ModuleList(heads)
        self.small_to_mtp_projection: nn.Module = nn.Identity()
        if widths.width != talker:
            self.small_to_mtp_projection = nn.Linear(talker, widths.width)


class TextProjection(nn.Module):
    """Text width -> talker width."""

    def __init__(self, text: int, talker: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text, text)
        self.linear_fc2 = nn.Linear(text, talker)

    def forward(self, x: Tensor) -> Tensor:
        """(..., text width) -> (..., D)."""
        return self.linear_fc2(functional.silu(self.linear_fc1(x)))


class Talker(nn.Module):
    """Everything of ``model.safetensors``; prefix its names by ``talker.``."""

    def __init__(
        self, recipe: LanguageRecipe, codec: CodecRecipe, codec_rows: int, text_rows: int
    ) -> None:
        super().__init__()
        self.num_groups = codec.num_groups
        widths = StackWidths(
            recipe.width,
            recipe.intermediate,
            recipe.num_layers,
            recipe.num_heads,
            recipe.num_kv_heads,
            recipe.head_width,
            recipe.dropout,
        )
        predictor = StackWidths(
            recipe.predictor_width,
            recipe.predictor_intermediate,
            recipe.predictor_layers,
            recipe.predictor_heads,
            recipe.predictor_kv_heads,
            recipe.predictor_head_width,
            recipe.dropout,
        )
        self.model = TalkerModel(widths, codec_rows, text_rows, recipe.text_width)
        self.text_projection = TextProjection(recipe.text_width, recipe.width)
        self.codec_head = nn.Linear(recipe.width, codec_rows, bias=False)
        self.code_predictor = CodePredictor(
            predictor, codec.num_groups, codec.codebook_size, recipe.width
        )
        self.register_buffer("small", torch.tensor(small_letters()), persistent=False)
        self._initialise()

    small: Tensor

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.8 * module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, 0, 0.3)
        nn.init.normal_(self.model.text_embedding.weight, 0, 1.0)
        for stack in (self.model, self.code_predictor.model):
            for layer in stack.layers:
                for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                    linear.weight.data.mul_((2 * len(stack.layers)) ** -0.5)

    def text(self, ids: Tensor) -> Tensor:
        """Text ids (...) -> (..., D); the alphabet is smaller than a batch."""
        return functional.embedding(
            self.small[ids], self.text_projection(self.model.text_embedding.weight)
        )

    def frames(self, codes: Tensor) -> Tensor:
        """Codes (..., G) -> (..., D)."""
        total = self.model.codec_embedding(codes[..., 0])
        for group, table in enumerate(self.code_predictor.model.codec_embedding, 1):
            total = total + table(codes[..., group])
        return total

    def embed(self, text: Tensor, codec: Tensor, frames: Tensor, is_frame: Tensor) -> Tensor:
        """Sum up positions (B, T): text, codec ids (-1: none), codes (B, T, G) of frames."""
        x = self.text(text)
        x = x + self.model.codec_embedding(codec.clamp(min=0)) * (codec >= 0)[..., None]
        return x + self.frames(frames) * is_frame[..., None]

    def predict_groups(self, hidden: Tensor, codes: Tensor) -> list[Tensor]:
        """Return the logits (N, C) of groups 1 .. G-1, given hidden (N, D) and codes (N, G)."""
        predictor = self.code_predictor
        inputs = [hidden, self.model.codec_embedding(codes[:, 0])]
        tables = predictor.model.codec_embedding
        inputs += [tables[k](codes[:, k + 1]) for k in range(self.num_groups - 2)]
        stacked = predictor.small_to_mtp_projection(torch.stack(inputs, 1))
        outputs = predictor.model.run(stacked, torch.arange(self.num_groups))
        return [head(outputs[:, k + 1]) for k, head in enumerate(predictor.lm_head)]
