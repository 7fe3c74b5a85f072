"""A whole bundle in the published layout: graphs and ``manifest.json``, without tokenizer files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.onnx_community_writer.codec import build_tok_decoder
from tests.support.onnx_community_writer.encoders import (
    build_speaker_encoder,
    build_tok_encoder,
)
from tests.support.onnx_community_writer.language import (
    build_code_predictor,
    build_codec_embed,
    build_residual_embed,
    build_talker_cache,
    build_text_embed,
)
from tests.support.onnx_community_writer.traced import Numerics
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.recipe import Precision
from wyoming_qwen3tts.errors import BuildError

# That of the published int4 files.
_BLOCK_SIZE: Final = 32


@dataclass(frozen=True)
class PublishedOptions:
    """How a bundle in the published layout is written."""

    precision: Precision = "fp32"
    """Of the language model's weights; the codec is always float32, as in the published files."""
    numerics: Numerics = field(default_factory=lambda: Numerics(block_size=_BLOCK_SIZE))
    components: tuple[str, ...] = ()
    """Only these; empty for all that the checkpoint has."""
    model_id: str = "onnx-community/Qwen3-TTS-12Hz"
    execution_provider: str = "CPUExecutionProvider"


_Build = Callable[[Checkpoint, PublishedOptions, Path], None]

_BUILDS: Final[Mapping[str, _Build]] = {
    "text_embed": lambda checkpoint, options, directory: build_text_embed(
        checkpoint, options.numerics, directory
    ),
    "codec_embed": lambda checkpoint, options, directory: build_codec_embed(
        checkpoint, options.numerics, directory
    ),
    "talker_cache": lambda checkpoint, options, directory: build_talker_cache(
        checkpoint, options.precision, options.numerics, directory
    ),
    "code_predictor": lambda checkpoint, options, directory: build_code_predictor(
        checkpoint, options.precision, options.numerics, directory
    ),
    "residual_embed": lambda checkpoint, options, directory: build_residual_embed(
        checkpoint, options.numerics, directory
    ),
    "tok_decoder": lambda checkpoint, _, directory: build_tok_decoder(checkpoint, directory),
    "tok_encoder": lambda checkpoint, _, directory: build_tok_encoder(checkpoint, directory),
    "speaker_encoder": lambda checkpoint, _, directory: build_speaker_encoder(
        checkpoint, directory
    ),
}
COMPONENTS: Final = tuple(_BUILDS)
"""Names of the graphs."""


def write_published_bundle(
    checkpoint: Checkpoint, directory: Path, options: PublishedOptions | None = None
) -> None:
    """Write graphs and manifest into ``directory``, which is made if it is not there.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A component is unknown, or a weight cannot be quantised.
    """
    options = options or PublishedOptions()
    unknown = set(options.components) - set(_BUILDS)
    if unknown:
        raise BuildError(
            f"Unknown component {min(unknown)!r}; the published layout has {', '.join(_BUILDS)}."
        )
    directory.mkdir(parents=True, exist_ok=True)
    is_base = checkpoint.speaker_encoder is not None
    available = [name for name in COMPONENTS if is_base or name != "speaker_encoder"]
    components = options.components or tuple(available)
    for name in components:
        _BUILDS[name](checkpoint, options, directory)
    manifest = {
        "model_id": options.model_id,
        "execution_provider": options.execution_provider,
        "sub_models": {name: {"filename": f"{name}.onnx"} for name in components},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
