"""Widths of the two presets, and the configuration files that state them.

The real values are those of the published Qwen3-TTS-12Hz checkpoints; the tiny ones shrink widths,
layers and vocabularies, and keep what code depends on: 1,024 special codec ids above the codes, the
offsets between special ids, 1,920 samples a frame, the 128-band mel front end.

Source of the key names: QwenLM/Qwen3-TTS configuration_qwen3_tts.py and
configuration_qwen3_tts_tokenizer_v2.py; transformers configuration_mimi.py.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from tests.support.random_checkpoint.recipe import (
    ModelSize,
    Preset,
    RandomCheckpointRecipe,
)
from tests.support.random_checkpoint.vocabulary import Vocabulary

NUM_SPECIAL_CODEC_IDS: Final = 1024
REAL_CODEBOOK_SIZE: Final = 2048
# Codec ids as published; a smaller codebook moves all of them down alike.
SPECIAL_CODEC_IDS: Final = {
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
}
LANGUAGE_IDS: Final = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
DIALECT_IDS: Final = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKER_IDS: Final = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPEAKER_DIALECTS: Final = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
# What the published files leave out, because the package's defaults hold.
SPEAKER_ENCODER_DEFAULTS: Final[dict[str, Any]] = {
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
TINY_SPEAKER_ENCODER: Final[dict[str, Any]] = {
    "mel_dim": 128,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 16,
    "enc_res2net_scale": 8,
    "enc_se_channels": 16,
}


@dataclass(frozen=True)
class TransformerDims:
    """Widths of one stack of transformer layers."""

    width: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int

    def as_config(self) -> dict[str, int]:
        """Return the configuration keys that state these widths."""
        return {
            "hidden_size": self.width,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_width,
        }


@dataclass(frozen=True)
class Dims:
    """Every width of a checkpoint."""

    talker: TransformerDims
    mrope_section: tuple[int, int, int]
    """Sums to half the talker's head width."""
    predictor: TransformerDims
    text_width: int
    codebook_size: int
    """A power of two, because the Mimi encoder checks that."""
    codec_decoder: TransformerDims
    latent_width: int
    decoder_codebook_width: int
    decoder_channels: int
    decoder_window: int
    codec_encoder: TransformerDims
    encoder_filters: int
    encoder_codebook_width: int
    encoder_window: int
    encoder_quantizers: int


_TINY = Dims(
    talker=TransformerDims(64, 128, 3, 4, 2, 32),
    mrope_section=(6, 5, 5),
    predictor=TransformerDims(64, 96, 2, 4, 2, 32),
    text_width=80,
    codebook_size=64,
    codec_decoder=TransformerDims(32, 48, 2, 4, 4, 16),
    latent_width=48,
    decoder_codebook_width=32,
    decoder_channels=64,
    decoder_window=9,
    codec_encoder=TransformerDims(32, 64, 2, 2, 2, 16),
    encoder_filters=4,
    encoder_codebook_width=16,
    encoder_window=10,
    encoder_quantizers=20,
)
_REAL = Dims(
    talker=TransformerDims(1024, 3072, 28, 16, 8, 128),
    mrope_section=(24, 20, 20),
    predictor=TransformerDims(1024, 3072, 5, 16, 8, 128),
    text_width=2048,
    codebook_size=REAL_CODEBOOK_SIZE,
    codec_decoder=TransformerDims(512, 1024, 8, 16, 16, 64),
    latent_width=1024,
    decoder_codebook_width=512,
    decoder_channels=1536,
    decoder_window=72,
    codec_encoder=TransformerDims(512, 2048, 8, 8, 8, 64),
    encoder_filters=64,
    encoder_codebook_width=256,
    encoder_window=250,
    encoder_quantizers=32,
)
# The larger size differs in the talker alone; its width is no longer the predictor's.
_DIMS: dict[tuple[Preset, ModelSize], Dims] = {
    ("tiny", "0.6B"): _TINY,
    ("tiny", "1.7B"): replace(_TINY, talker=replace(_TINY.talker, width=96)),
    ("real", "0.6B"): _REAL,
    ("real", "1.7B"): replace(_REAL, talker=replace(_REAL.talker, width=2048, intermediate=6144)),
}
_SIZE_IN_CONFIG: dict[ModelSize, str] = {"0.6B": "0b6", "1.7B": "1b7"}


def dims_of(recipe: RandomCheckpointRecipe) -> Dims:
    """Return the widths that a recipe asks for."""
    return _DIMS[recipe.preset, recipe.model_size]


def model_config(recipe: RandomCheckpointRecipe, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return ``config.json``."""
    special = vocabulary.special_ids
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": _SIZE_IN_CONFIG[recipe.model_size],
        "tts_model_type": recipe.model_type,
        "assistant_token_id": vocabulary.ids["assistant"],
        "im_start_token_id": special["<|im_start|>"],
        "im_end_token_id": special["<|im_end|>"],
        "tts_pad_token_id": special["<tts_pad>"],
        "tts_bos_token_id": special["<tts_text_bos>"],
        "tts_eos_token_id": special["<tts_text_eod>"],
        "talker_config": _talker_config(recipe, vocabulary.padded_size),
        "transformers_version": "4.57.3",
    }
    if recipe.model_type == "base":
        config["speaker_encoder_config"] = {
            "enc_dim": dims_of(recipe).talker.width,
            "sample_rate": 24000,
            **(TINY_SPEAKER_ENCODER if recipe.preset == "tiny" else {}),
        }
    return config


def _talker_config(recipe: RandomCheckpointRecipe, text_vocab_size: int) -> dict[str, Any]:
    dims = dims_of(recipe)
    shift = REAL_CODEBOOK_SIZE - dims.codebook_size
    has_presets = recipe.model_type == "custom_voice"
    languages = LANGUAGE_IDS | (DIALECT_IDS if has_presets else {})
    speakers = SPEAKER_IDS if has_presets else {}
    return {
        "model_type": "qwen3_tts_talker",
        "vocab_size": dims.codebook_size + NUM_SPECIAL_CODEC_IDS,
        **dims.talker.as_config(),
        **_QWEN3_FIELDS,
        "max_position_embeddings": 32768,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": list(dims.mrope_section),
            "rope_type": "default",
            "type": "default",
        },
        "num_code_groups": recipe.num_code_groups,
        "text_hidden_size": dims.text_width,
        "text_vocab_size": text_vocab_size,
        "position_id_per_seconds": 13,
        **{key: real_id - shift for key, real_id in SPECIAL_CODEC_IDS.items()},
        "codec_language_id": {name: real_id - shift for name, real_id in languages.items()},
        "spk_id": {name: real_id - shift for name, real_id in speakers.items()},
        "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in speakers},
        "code_predictor_config": {
            "model_type": "qwen3_tts_talker_code_predictor",
            "vocab_size": dims.codebook_size,
            **dims.predictor.as_config(),
            **_QWEN3_FIELDS,
            "max_position_embeddings": 65536,
            "rope_scaling": None,
            "max_window_layers": 28,
            "layer_types": ["full_attention"] * dims.predictor.num_layers,
            "num_code_groups": recipe.num_code_groups,
            "tie_word_embeddings": False,
        },
    }


_QWEN3_FIELDS: Final[dict[str, Any]] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "attention_bias": False,
    "attention_dropout": 0,
    "use_sliding_window": False,
    "sliding_window": None,
    "use_cache": True,
    "initializer_range": 0.02,
}


def codec_config(recipe: RandomCheckpointRecipe) -> dict[str, Any]:
    """Return ``speech_tokenizer/config.json``."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": recipe.num_code_groups,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "transformers_version": "4.57.3",
        "decoder_config": _codec_decoder_config(recipe),
        "encoder_config": _codec_encoder_config(recipe),
    }


def _codec_decoder_config(recipe: RandomCheckpointRecipe) -> dict[str, Any]:
    dims = dims_of(recipe)
    return {
        **dims.codec_decoder.as_config(),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "latent_dim": dims.latent_width,
        "codebook_dim": dims.decoder_codebook_width,
        "codebook_size": dims.codebook_size,
        "decoder_dim": dims.decoder_channels,
        "hidden_act": "silu",
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "num_quantizers": recipe.num_code_groups,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "semantic_codebook_size": 2 * dims.codebook_size,
        "sliding_window": dims.decoder_window,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": dims.decoder_codebook_width,
    }


def _codec_encoder_config(recipe: RandomCheckpointRecipe) -> dict[str, Any]:
    dims = dims_of(recipe)
    return {
        **dims.codec_encoder.as_config(),
        "_frame_rate": 12.5,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_dim": dims.encoder_codebook_width,
        "codebook_size": dims.codebook_size,
        "compress": 2,
        "dilation_growth_rate": 2,
        "dtype": "float32",
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-5,
        "normalize": False,
        "num_filters": dims.encoder_filters,
        "num_quantizers": dims.encoder_quantizers,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": dims.encoder_window,
        "trim_right_ratio": 1.0,
        "upsample_groups": dims.codec_encoder.width,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": dims.encoder_codebook_width,
    }
