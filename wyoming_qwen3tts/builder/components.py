"""Components of a bundle: their files, the checkpoint's tensors that they need, and their size."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from wyoming_qwen3tts.builder.checkpoint import TOKENIZER_FILES, Checkpoint
from wyoming_qwen3tts.builder.recipe import Precision, Recipe
from wyoming_qwen3tts.builder.tables import TABLE_FILES


@dataclass(frozen=True)
class Component:
    """Files and tensors of one component. Patterns as in :meth:`TensorFile.finish`."""

    files: tuple[str, ...]
    main: tuple[str, ...] = ()
    codec: tuple[str, ...] = ()


def _graph_files(name: str) -> tuple[str, ...]:
    return (f"{name}.onnx", f"{name}.onnx.data")


COMPONENTS: Final[Mapping[str, Component]] = {
    "talker": Component(
        _graph_files("talker"),
        main=("talker.model.layers.*", "talker.model.norm.*", "talker.codec_head.*"),
    ),
    "code_predictor": Component(
        _graph_files("code_predictor"),
        main=("talker.code_predictor.*", "talker.model.codec_embedding.*"),
    ),
    "embeddings": Component(
        (*TABLE_FILES, *TOKENIZER_FILES),
        main=(
            "talker.model.*_embedding.*",
            "talker.text_projection.*",
            "talker.code_predictor.model.codec_embedding.*",
        ),
    ),
    "codec_decoder": Component(_graph_files("codec_decoder"), codec=("decoder.*",)),
    "codec_encoder": Component(_graph_files("codec_encoder"), codec=("encoder.*",)),
    "speaker_encoder": Component(_graph_files("speaker_encoder"), main=("speaker_encoder.*",)),
}
"""Name, as ``--components`` takes it -> component, in the order of building."""

CLONING: Final = ("codec_encoder", "speaker_encoder")
"""Components that only Base models have."""

# Bytes of a stored value of 1 parameter: quantised ones have a float32 scale per block besides.
_BYTES_PER_VALUE: Final[Mapping[Precision, float]] = {
    "fp32": 4.0,
    "fp16": 2.0,
    "int8": 1.0,
    "int4": 0.5,
}
_SPACE_MARGIN = 1.1
# Minimal filters are stored transformed (measured: 525 MB for 457 MB of tensors); the int8 graph is
# calibrated on a float32 one, which lies beside it until then.
_CODEC_GROWTH: Final = {"fp32": 1.15, "int8": 2.3}


def needed_bytes(checkpoint: Checkpoint, recipe: Recipe, components: Collection[str]) -> int:
    """Return an estimate, on the high side, of the size of ``components``."""
    main_values = {
        # The main file stores two bytes a value.
        name: checkpoint.main.num_bytes(COMPONENTS[name].main) / 2
        for name in components
    }
    predictor_bytes = max(
        _BYTES_PER_VALUE[recipe.code_predictor.layers], _BYTES_PER_VALUE[recipe.embeddings]
    )
    bytes_per_value = {
        "talker": _BYTES_PER_VALUE[recipe.talker.layers],
        "code_predictor": predictor_bytes,
        "embeddings": _BYTES_PER_VALUE[recipe.embeddings],
    }
    language = sum(
        values * bytes_per_value.get(name, _BYTES_PER_VALUE["fp32"])
        for name, values in main_values.items()
    )
    codec = sum(checkpoint.codec.num_bytes(COMPONENTS[name].codec) for name in components)
    growth = _CODEC_GROWTH[recipe.codec_decoder]
    return int((language + codec * growth) * _SPACE_MARGIN)
