"""Widths, counts and constants of every network, parsed from a checkpoint's JSON files.

Nothing falls back to a default, with one exception that the published files force: they state only
two fields of the speaker encoder, the rest are the defaults of the official package.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wyoming_qwen3tts.errors import CheckpointError

# Published files leave these out. Source: QwenLM/Qwen3-TTS configuration of the speaker encoder.
_SPEAKER_ENCODER_DEFAULTS: dict[str, Any] = {
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}


@dataclass(frozen=True)
class TransformerConfig:
    """A stack of decoder layers."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_eps: float
    rope_theta: float

    @property
    def query_size(self) -> int:
        """Width of all query heads together; not always the hidden size."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_size


@dataclass(frozen=True)
class TalkerConfig:
    """The language model over frames."""

    transformer: TransformerConfig
    vocab_size: int
    """Rows of the talker's codec table: codes, then special ids and speakers."""
    codebook_size: int
    eos_id: int
    """Row of end of speech."""
    num_code_groups: int
    text_vocab_size: int
    text_hidden_size: int
    max_positions: int


@dataclass(frozen=True)
class CodePredictorConfig:
    """The small language model inside a frame."""

    transformer: TransformerConfig
    codebook_size: int
    num_code_groups: int
    talker_hidden_size: int
    """Width of the talker's hidden vector and of the predictor's embedding tables."""
    talker_vocab_size: int
    """Rows of the talker's codec table, the first of which embed group 0."""

    @property
    def has_projection(self) -> bool:
        """Whether ``small_to_mtp_projection`` brings talker width to predictor width."""
        return self.talker_hidden_size != self.transformer.hidden_size


@dataclass(frozen=True)
class CodecDecoderConfig:
    """Codes to audio."""

    transformer: TransformerConfig
    sliding_window: int
    """Frames that attention sees, the current one included."""
    latent_dim: int
    codebook_dim: int
    """Width after the codebooks' output projection; the codebooks themselves are half as wide."""
    codebook_size: int
    decoder_dim: int
    num_quantizers: int
    upsample_rates: tuple[int, ...]
    """Factors of the decoder blocks' transposed convolutions."""
    upsampling_ratios: tuple[int, ...]
    """Factors of the up-sampling stages before the decoder blocks."""
    samples_per_frame: int


@dataclass(frozen=True)
class CodecEncoderConfig:
    """Audio to codes (Mimi)."""

    transformer: TransformerConfig
    audio_channels: int
    num_filters: int
    kernel_size: int
    last_kernel_size: int
    residual_kernel_size: int
    num_residual_layers: int
    dilation_growth_rate: int
    compress: int
    upsampling_ratios: tuple[int, ...]
    """As the file orders them; the encoder goes through them in reverse."""
    codebook_dim: int
    codebook_size: int
    vq_hidden_size: int
    num_quantizers: int
    num_semantic_quantizers: int
    num_valid_quantizers: int
    """The first ones that make up a frame."""
    samples_per_frame: int


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """Audio to an x-vector (ECAPA-TDNN)."""

    x_vector_size: int
    sample_rate_hz: int
    num_mels: int
    channels: tuple[int, ...]
    kernel_sizes: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    res2net_scale: int
    se_channels: int


class _Section:
    """A JSON object that knows its path, so that errors name the key."""

    def __init__(self, values: Any, path: str) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{path} is not a JSON object; is the checkpoint complete?")
        self._values = values
        self._path = path

    def section(self, key: str) -> "_Section":
        return _Section(self._get(key), f"{self._path}.{key}")

    def integer(self, key: str) -> int:
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, value, "a whole number of at least 0")
        return value

    def number(self, key: str) -> float:
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def integers(self, key: str) -> tuple[int, ...]:
        value = self._get(key)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._wrong(key, value, "a list of whole numbers")
        return tuple(value)

    def require(self, key: str, expected: Any) -> None:
        """Refuse a checkpoint whose ``key``, where present, is not ``expected``."""
        value = self._values.get(key, expected)
        if value != expected:
            raise self._wrong(key, value, f"{expected!r}, the only value this builder supports")

    def _get(self, key: str) -> Any:
        if key not in self._values:
            raise CheckpointError(
                f"{self._path} has no key {key!r}; is it a Qwen3-TTS 12 Hz checkpoint?"
            )
        return self._values[key]

    def _wrong(self, key: str, value: Any, expected: str) -> CheckpointError:
        return CheckpointError(f"{self._path}.{key} is {value!r}, expected {expected}.")


def read_talker_config(config: Mapping[str, Any]) -> TalkerConfig:
    """Read the talker's part of ``config.json``.

    Raises:
        CheckpointError: A key is missing, of the wrong kind, or asks for what is not supported.
    """
    talker = _Section(config, "config.json").section("talker_config")
    vocab_size = talker.integer("vocab_size")
    codebook_size = talker.section("code_predictor_config").integer("vocab_size")
    eos_id = talker.integer("codec_eos_token_id")
    if not codebook_size <= eos_id < vocab_size:
        raise CheckpointError(
            f"config.json.talker_config.codec_eos_token_id is {eos_id}, expected a special row "
            f"between {codebook_size} and {vocab_size - 1}."
        )
    return TalkerConfig(
        transformer=_language_transformer(talker),
        vocab_size=vocab_size,
        codebook_size=codebook_size,
        eos_id=eos_id,
        num_code_groups=_code_groups(talker),
        text_vocab_size=talker.integer("text_vocab_size"),
        text_hidden_size=talker.integer("text_hidden_size"),
        max_positions=talker.integer("max_position_embeddings"),
    )


def read_code_predictor_config(config: Mapping[str, Any]) -> CodePredictorConfig:
    """Read the code predictor's part of ``config.json``.

    Raises:
        CheckpointError: A key is missing, of the wrong kind, or asks for what is not supported.
    """
    talker = _Section(config, "config.json").section("talker_config")
    predictor = talker.section("code_predictor_config")
    num_code_groups = _code_groups(talker)
    predictor.require("num_code_groups", num_code_groups)
    return CodePredictorConfig(
        transformer=_language_transformer(predictor),
        codebook_size=predictor.integer("vocab_size"),
        num_code_groups=num_code_groups,
        talker_hidden_size=talker.integer("hidden_size"),
        talker_vocab_size=talker.integer("vocab_size"),
    )


def read_codec_decoder_config(codec_config: Mapping[str, Any]) -> CodecDecoderConfig:
    """Read the decoder's part of ``speech_tokenizer/config.json``.

    Raises:
        CheckpointError: A key is missing, of the wrong kind, or asks for what is not supported.
    """
    codec = _Section(codec_config, "speech_tokenizer/config.json")
    decoder = codec.section("decoder_config")
    decoder.require("attention_bias", expected=False)
    decoder.require("hidden_act", "silu")
    return CodecDecoderConfig(
        transformer=_transformer(decoder, "rms_norm_eps"),
        sliding_window=decoder.integer("sliding_window"),
        latent_dim=decoder.integer("latent_dim"),
        codebook_dim=decoder.integer("codebook_dim"),
        codebook_size=decoder.integer("codebook_size"),
        decoder_dim=decoder.integer("decoder_dim"),
        num_quantizers=decoder.integer("num_quantizers"),
        upsample_rates=decoder.integers("upsample_rates"),
        upsampling_ratios=decoder.integers("upsampling_ratios"),
        samples_per_frame=codec.integer("decode_upsample_rate"),
    )


def read_codec_encoder_config(codec_config: Mapping[str, Any]) -> CodecEncoderConfig:
    """Read the encoder's part of ``speech_tokenizer/config.json``.

    Raises:
        CheckpointError: A key is missing, of the wrong kind, or asks for what is not supported.
    """
    codec = _Section(codec_config, "speech_tokenizer/config.json")
    encoder = codec.section("encoder_config")
    encoder.require("attention_bias", expected=False)
    encoder.require("hidden_act", "gelu")
    encoder.require("use_causal_conv", expected=True)
    encoder.require("use_conv_shortcut", expected=False)
    encoder.require("pad_mode", "constant")
    return CodecEncoderConfig(
        transformer=_transformer(encoder, "norm_eps"),
        audio_channels=encoder.integer("audio_channels"),
        num_filters=encoder.integer("num_filters"),
        kernel_size=encoder.integer("kernel_size"),
        last_kernel_size=encoder.integer("last_kernel_size"),
        residual_kernel_size=encoder.integer("residual_kernel_size"),
        num_residual_layers=encoder.integer("num_residual_layers"),
        dilation_growth_rate=encoder.integer("dilation_growth_rate"),
        compress=encoder.integer("compress"),
        upsampling_ratios=encoder.integers("upsampling_ratios"),
        codebook_dim=encoder.integer("codebook_dim"),
        codebook_size=encoder.integer("codebook_size"),
        vq_hidden_size=encoder.integer("vector_quantization_hidden_dimension"),
        num_quantizers=encoder.integer("num_quantizers"),
        num_semantic_quantizers=encoder.integer("num_semantic_quantizers"),
        num_valid_quantizers=codec.integer("encoder_valid_num_quantizers"),
        samples_per_frame=codec.integer("encode_downsample_rate"),
    )


def read_speaker_encoder_config(config: Mapping[str, Any]) -> SpeakerEncoderConfig | None:
    """Read the speaker encoder's part of ``config.json``; None where the model has none.

    Raises:
        CheckpointError: A key is of the wrong kind.
    """
    if "speaker_encoder_config" not in config:
        return None
    given = config["speaker_encoder_config"]
    if not isinstance(given, Mapping):
        raise CheckpointError("config.json.speaker_encoder_config is not a JSON object.")
    section = _Section({**_SPEAKER_ENCODER_DEFAULTS, **given}, "config.json.speaker_encoder_config")
    return SpeakerEncoderConfig(
        x_vector_size=section.integer("enc_dim"),
        sample_rate_hz=section.integer("sample_rate"),
        num_mels=section.integer("mel_dim"),
        channels=section.integers("enc_channels"),
        kernel_sizes=section.integers("enc_kernel_sizes"),
        dilations=section.integers("enc_dilations"),
        attention_channels=section.integer("enc_attention_channels"),
        res2net_scale=section.integer("enc_res2net_scale"),
        se_channels=section.integer("enc_se_channels"),
    )


def _language_transformer(section: _Section) -> TransformerConfig:
    section.require("attention_bias", expected=False)
    section.require("hidden_act", "silu")
    section.require("use_sliding_window", expected=False)
    section.require("tie_word_embeddings", expected=False)
    return _transformer(section, "rms_norm_eps")


def _transformer(section: _Section, norm_eps_key: str) -> TransformerConfig:
    transformer = TransformerConfig(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        num_layers=section.integer("num_hidden_layers"),
        num_heads=section.integer("num_attention_heads"),
        num_kv_heads=section.integer("num_key_value_heads"),
        head_size=section.integer("head_dim"),
        norm_eps=section.number(norm_eps_key),
        rope_theta=section.number("rope_theta"),
    )
    if transformer.num_kv_heads == 0 or transformer.num_heads % transformer.num_kv_heads:
        raise CheckpointError(
            f"{transformer.num_heads} attention heads cannot share {transformer.num_kv_heads} "
            "key/value heads; the checkpoint's configuration is damaged."
        )
    return transformer


def _code_groups(talker: _Section) -> int:
    num_code_groups = talker.integer("num_code_groups")
    if num_code_groups < 2:
        raise CheckpointError(
            f"config.json.talker_config.num_code_groups is {num_code_groups}, expected at least 2."
        )
    return num_code_groups
