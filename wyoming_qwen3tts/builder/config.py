"""Widths, counts and constants of every network, from a checkpoint's JSON files.

No value has a default, but for the speaker encoder: the published files state two of its fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_type_hints

from wyoming_qwen3tts.errors import CheckpointError
from wyoming_qwen3tts.runtime.manifest import check_numbers, decode_strictly

SPEAKER_ENCODER_DEFAULTS: Final[dict[str, Any]] = {
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
"""Fields that published files leave out. Source: QwenLM/Qwen3-TTS, the speaker encoder's config."""

_Config = TypeVar("_Config")
_TRANSFORMER_KEYS: Final = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "norm_eps": "rms_norm_eps",
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
    """The language model over frames; its codec table has codes, then special ids and speakers."""

    transformer: TransformerConfig
    vocab_size: int
    codebook_size: int
    eos_id: int
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
    talker_vocab_size: int

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
    codebook_size: int
    decoder_dim: int
    num_quantizers: int
    upsampling_ratios: tuple[int, ...]
    """Factors of the stages before the decoder blocks."""
    upsample_rates: tuple[int, ...]
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
    codebook_dim: int
    codebook_size: int
    num_quantizers: int
    num_semantic_quantizers: int
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
        self._values, self._path = values, path

    def section(self, key: str) -> "_Section":
        return _Section(self.get(Any, key), f"{self._path}.{key}")

    def get(self, kind: Any, key: str) -> Any:
        """Return the value of a key, which must be of ``kind``."""
        try:
            value = self._values[key]
            return value if kind is Any else decode_strictly(kind, value, f"{self._path}.{key}")
        except (KeyError, ValueError) as error:
            problem = f"{self._path} has no key {key!r}" if isinstance(error, KeyError) else error
            raise CheckpointError(f"{problem}; is it a Qwen3-TTS 12 Hz checkpoint?") from error

    def read(
        self, kind: type[_Config], keys: Mapping[str, str] | None = None, **given: Any
    ) -> _Config:
        """Make a dataclass; ``keys`` names the JSON keys that differ from the field's name."""
        kinds = {name: each for name, each in get_type_hints(kind).items() if name not in given}
        keys = {**{name: name for name in kinds}, **(keys or {})}
        read = kind(**given, **{name: self.get(kinds[name], keys[name]) for name in kinds})
        try:
            check_numbers(read)
        except ValueError as error:
            raise CheckpointError(f"{self._path}: {error}.") from error
        return read

    def require(self, **expected: Any) -> None:
        """Refuse a checkpoint that has another value for one of the keys."""
        for key, value in expected.items():
            if (given := self._values.get(key, value)) != value:
                raise CheckpointError(f"{self._path}.{key} is {given!r}, expected {value!r}.")


# All readers raise a CheckpointError if a key is missing, of another type, or without support here.


def read_talker_config(config: Mapping[str, Any]) -> TalkerConfig:
    """Read the talker's part of ``config.json``."""
    talker = _Section(config, "config.json").section("talker_config")
    read = talker.read(
        TalkerConfig,
        {"eos_id": "codec_eos_token_id", "max_positions": "max_position_embeddings"},
        transformer=_language_transformer(talker),
        codebook_size=talker.section("code_predictor_config").get(int, "vocab_size"),
    )
    if not read.codebook_size <= read.eos_id < read.vocab_size:
        raise CheckpointError(f"{read.eos_id} as codec_eos_token_id is no special row.")
    if read.num_code_groups < 2:
        raise CheckpointError("config.json.talker_config.num_code_groups is not at least 2.")
    return read


def read_code_predictor_config(config: Mapping[str, Any]) -> CodePredictorConfig:
    """Read the code predictor's part of ``config.json``."""
    talker = read_talker_config(config)
    section = _Section(config["talker_config"], "config.json.talker_config")
    predictor = section.section("code_predictor_config")
    predictor.require(num_code_groups=talker.num_code_groups)
    return CodePredictorConfig(
        transformer=_language_transformer(predictor),
        codebook_size=talker.codebook_size,
        num_code_groups=talker.num_code_groups,
        talker_hidden_size=talker.transformer.hidden_size,
        talker_vocab_size=talker.vocab_size,
    )


def read_codec_decoder_config(codec_config: Mapping[str, Any]) -> CodecDecoderConfig:
    """Read the decoder's part of ``speech_tokenizer/config.json``."""
    codec = _Section(codec_config, "speech_tokenizer/config.json")
    decoder = codec.section("decoder_config")
    decoder.require(attention_bias=False, hidden_act="silu")
    return decoder.read(
        CodecDecoderConfig,
        transformer=_transformer(decoder),
        samples_per_frame=codec.get(int, "decode_upsample_rate"),
    )


def read_codec_encoder_config(codec_config: Mapping[str, Any]) -> CodecEncoderConfig:
    """Read the encoder's part of ``speech_tokenizer/config.json``."""
    codec = _Section(codec_config, "speech_tokenizer/config.json")
    encoder = codec.section("encoder_config")
    encoder.require(attention_bias=False, hidden_act="gelu", pad_mode="constant")
    encoder.require(use_causal_conv=True, use_conv_shortcut=False)
    return encoder.read(
        CodecEncoderConfig,
        transformer=_transformer(encoder, norm_eps="norm_eps"),
        samples_per_frame=codec.get(int, "encode_downsample_rate"),
    )


def read_speaker_encoder_config(config: Mapping[str, Any]) -> SpeakerEncoderConfig | None:
    """Read the speaker encoder's part of ``config.json``; None if the model has none."""
    given = config.get("speaker_encoder_config")
    if not given:
        return None
    if isinstance(given, Mapping):
        given = {**SPEAKER_ENCODER_DEFAULTS, **given}
    keys = {name: f"enc_{name}" for name in get_type_hints(SpeakerEncoderConfig)}
    keys |= {"x_vector_size": "enc_dim", "sample_rate_hz": "sample_rate", "num_mels": "mel_dim"}
    return _Section(given, "config.json.speaker_encoder_config").read(SpeakerEncoderConfig, keys)


def _language_transformer(section: _Section) -> TransformerConfig:
    section.require(attention_bias=False, hidden_act="silu")
    section.require(use_sliding_window=False, tie_word_embeddings=False)
    return _transformer(section)


def _transformer(section: _Section, **keys: str) -> TransformerConfig:
    transformer = section.read(TransformerConfig, {**_TRANSFORMER_KEYS, **keys})
    heads, shared = transformer.num_heads, transformer.num_kv_heads
    if shared <= 0 or heads % shared:
        raise CheckpointError(f"{heads} attention heads cannot share {shared} key/value heads.")
    if transformer.head_size > transformer.hidden_size:
        raise CheckpointError(f"An attention head of {transformer.head_size} values is too large.")
    return transformer
