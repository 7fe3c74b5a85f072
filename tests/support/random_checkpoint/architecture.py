"""The configuration files of a random checkpoint: the published ones, or with tiny widths.

The tiny preset shrinks widths, layers and vocabularies. It keeps what code depends on: 1,024
special codec ids above the codes, their offsets, 1,920 samples per frame, 128 mel bands.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import yaml

from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import ModelType

if TYPE_CHECKING:
    from tests.support.random_checkpoint.vocabulary import Vocabulary

ModelSize = Literal["0.6B", "1.7B"]
Preset = Literal["tiny", "real"]

TEMPLATES: Final[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "templates.yaml").read_text(encoding="utf-8")
)
_TALKER: Final[dict[str, Any]] = TEMPLATES["config"]["talker_config"]
NUM_SPECIAL_CODEC_IDS: Final = 1024
REAL_CODEBOOK_SIZE: Final = 2048
# Codec ids as published; a smaller codebook moves all of them down alike.
SPECIAL_CODEC_IDS: Final[dict[str, int]] = {
    key: value
    for key, value in _TALKER.items()
    if key.startswith("codec_") and isinstance(value, int)
}
SPEAKER_IDS: Final[dict[str, int]] = _TALKER["spk_id"]
LANGUAGE_IDS: Final[dict[str, int]] = {
    name: row for name, row in _TALKER["codec_language_id"].items() if "dialect" not in name
}

# The combinations that were published.
PUBLISHED: tuple[tuple[ModelSize, ModelType], ...] = (
    ("0.6B", "custom_voice"),
    ("0.6B", "base"),
    ("1.7B", "custom_voice"),
    ("1.7B", "base"),
    ("1.7B", "voice_design"),
)
# The Mimi encoder of the tiny preset has 20 quantizers, of which the first are kept.
_MAX_CODE_GROUPS: Final = 20


@dataclass(frozen=True)
class RandomCheckpointRecipe:
    """Everything that decides a random checkpoint; equal recipes give equal files."""

    model_type: ModelType = "custom_voice"
    model_size: ModelSize = "0.6B"
    """Decides the talker's width, whether the code predictor has a projection and, on CustomVoice,
    whether instructions are followed."""
    preset: Preset = "tiny"
    """"tiny" is for tests (about 2.5 MB); "real" has the published dimensions (2.5 or 4.5 GB)."""
    seed: int = 0
    num_code_groups: int = 16
    eos_gain: float = 2.2
    """Factor on the end-of-speech row of the codec head. Plain random weights hardly ever stop; 2.2
    spreads tiny utterances over 2 to 40 frames, 0 never stops before the limit."""

    def __post_init__(self) -> None:
        """Refuse impossible values with a BuildError."""
        for name, known in (
            ("model_type", get_args(ModelType)),
            ("model_size", get_args(ModelSize)),
            ("preset", get_args(Preset)),
            ("num_code_groups", range(2, _MAX_CODE_GROUPS + 1)),
        ):
            if getattr(self, name) not in known:
                raise BuildError(f"{name} is {getattr(self, name)!r}; use one of {list(known)}.")
        if self.seed < 0:
            raise BuildError(f"The seed is {self.seed}; use a number that is not negative.")


def model_config(recipe: RandomCheckpointRecipe, vocabulary: "Vocabulary") -> dict[str, Any]:
    """Return ``config.json``."""
    config, special = _template(recipe, "config"), vocabulary.special_ids
    config |= {
        "tts_model_size": {"0.6B": "0b6", "1.7B": "1b7"}[recipe.model_size],
        "tts_model_type": recipe.model_type,
        "assistant_token_id": vocabulary.ids["assistant"],
        "im_start_token_id": special["<|im_start|>"],
        "im_end_token_id": special["<|im_end|>"],
        "tts_pad_token_id": special["<tts_pad>"],
        "tts_bos_token_id": special["<tts_text_bos>"],
        "tts_eos_token_id": special["<tts_text_eod>"],
    }
    talker = config["talker_config"]
    predictor = talker["code_predictor_config"]
    if recipe.model_size == "1.7B":
        talker |= TEMPLATES["large_talker"][recipe.preset]
    codebook_size = predictor["vocab_size"]
    shift = REAL_CODEBOOK_SIZE - codebook_size
    talker |= {
        "vocab_size": codebook_size + NUM_SPECIAL_CODEC_IDS,
        "text_vocab_size": vocabulary.padded_size,
        **{key: row - shift for key, row in SPECIAL_CODEC_IDS.items()},
    }
    has_presets = recipe.model_type == "custom_voice"
    languages = talker["codec_language_id"] if has_presets else LANGUAGE_IDS
    speakers = SPEAKER_IDS if has_presets else {}
    talker["codec_language_id"] = {name: row - shift for name, row in languages.items()}
    talker["spk_id"] = {name: row - shift for name, row in speakers.items()}
    talker["spk_is_dialect"] = {name: talker["spk_is_dialect"][name] for name in speakers}
    talker["num_code_groups"] = predictor["num_code_groups"] = recipe.num_code_groups
    if recipe.model_type == "base":
        speaker_encoder = _template(recipe, "speaker_encoder_config")
        config["speaker_encoder_config"] = {**speaker_encoder, "enc_dim": talker["hidden_size"]}
    return config


def codec_config(recipe: RandomCheckpointRecipe) -> dict[str, Any]:
    """Return ``speech_tokenizer/config.json``."""
    config = _template(recipe, "codec_config")
    config["encoder_valid_num_quantizers"] = recipe.num_code_groups
    config["decoder_config"]["num_quantizers"] = recipe.num_code_groups
    return config


def _template(recipe: RandomCheckpointRecipe, name: str) -> dict[str, Any]:
    template: dict[str, Any] = deepcopy(TEMPLATES[name])
    if recipe.preset == "tiny":
        _merge(template, TEMPLATES["tiny"][name])
    return template


def _merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict):
            _merge(target[key], value)
        else:
            target[key] = deepcopy(value)
