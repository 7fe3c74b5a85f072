"""What a model is: its type, size, special ids, languages, speakers and defaults.

Read from the checkpoint's own ``config.json`` and ``generation_config.json`` (published bundles)
or from a bundle's manifest, where the builder stored the same facts. Nothing here is a default of
ours: ids and counts always come from the files.
"""

from dataclasses import dataclass
from typing import Any, Literal

from wyoming_qwen3tts.errors import CheckpointError

ModelType = Literal["custom_voice", "base", "voice_design"]

MODEL_TYPES: tuple[ModelType, ...] = ("custom_voice", "base", "voice_design")
# The config's spelling -> the spelling of the repository names. Other sizes are passed through.
_SIZES = {"0b6": "0.6B", "1b7": "1.7B"}


@dataclass(frozen=True)
class TextIds:
    """Ids of the text tokenizer that the prompt needs."""

    im_start: int
    im_end: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int


@dataclass(frozen=True)
class CodecIds:
    """Special rows of the talker's codec embedding table."""

    pad: int
    bos: int
    eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults of the checkpoint."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_do_sample: bool
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float
    max_new_tokens: int
    """The official limit; the last sampled token never becomes a frame."""
    non_streaming_mode: bool | None = None
    """Whether the whole text is in the prompt, where a checkpoint says so; the published ones leave
    it to the kind of voice."""


@dataclass(frozen=True)
class ModelFacts:
    """Immutable facts of one model."""

    model_type: ModelType
    model_size: str
    """"0.6B" or "1.7B" for the published models."""
    hidden_size: int
    """Width D of the talker, of every embedding and of an x-vector."""
    num_code_groups: int
    codebook_size: int
    """Codes per group; the talker's table has special rows above them."""
    max_positions: int
    """Positions (prompt and frames together) that the talker was configured for."""
    sample_rate_hz: int
    samples_per_frame: int
    text_ids: TextIds
    codec_ids: CodecIds
    languages: dict[str, int]
    """Language and dialect names as the checkpoint spells them ("english") -> codec id."""
    speakers: dict[str, int]
    """Preset speakers in lower case -> row of the codec embedding table."""
    dialects: dict[str, str]
    """Speaker -> dialect (a key of ``languages``) that replaces auto and Chinese."""
    generation: GenerationDefaults

    @property
    def frame_rate_hz(self) -> float:
        """Frames per second of audio."""
        return self.sample_rate_hz / self.samples_per_frame

    @property
    def follows_instructions(self) -> bool:
        """Whether a style instruction has an effect: not on Base, not on the 0.6B CustomVoice."""
        return self.model_type == "voice_design" or (
            self.model_type == "custom_voice" and self.model_size != "0.6B"
        )

    @property
    def spoken_languages(self) -> tuple[str, ...]:
        """Languages that a request may name, without dialects, sorted."""
        return tuple(sorted(name for name in self.languages if "dialect" not in name))


def facts_from_checkpoint(
    config: dict[str, Any], codec_config: dict[str, Any], generation: dict[str, Any]
) -> ModelFacts:
    """Read the facts from a checkpoint's three JSON files.

    Args:
        config: ``config.json``.
        codec_config: ``speech_tokenizer/config.json``.
        generation: ``generation_config.json``.

    Raises:
        CheckpointError: A key is missing or the model type is unknown.
    """
    try:
        return _read_facts(config, codec_config, generation)
    except KeyError as error:
        raise CheckpointError(
            f"The checkpoint's configuration has no key {error}; "
            "is it a Qwen3-TTS 12 Hz checkpoint?"
        ) from error


def _read_facts(
    config: dict[str, Any], codec_config: dict[str, Any], generation: dict[str, Any]
) -> ModelFacts:
    model_type = config["tts_model_type"]
    if model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise CheckpointError(f"Unknown tts_model_type {model_type!r}; this project knows {known}.")
    talker = config["talker_config"]
    return ModelFacts(
        model_type=model_type,
        model_size=_SIZES.get(config["tts_model_size"], config["tts_model_size"]),
        hidden_size=talker["hidden_size"],
        num_code_groups=talker["num_code_groups"],
        codebook_size=talker["code_predictor_config"]["vocab_size"],
        max_positions=talker["max_position_embeddings"],
        sample_rate_hz=codec_config["output_sample_rate"],
        samples_per_frame=codec_config["decode_upsample_rate"],
        text_ids=TextIds(
            im_start=config["im_start_token_id"],
            im_end=config["im_end_token_id"],
            assistant=config["assistant_token_id"],
            tts_pad=config["tts_pad_token_id"],
            tts_bos=config["tts_bos_token_id"],
            tts_eos=config["tts_eos_token_id"],
        ),
        codec_ids=CodecIds(
            pad=talker["codec_pad_id"],
            bos=talker["codec_bos_id"],
            eos=talker["codec_eos_token_id"],
            think=talker["codec_think_id"],
            nothink=talker["codec_nothink_id"],
            think_bos=talker["codec_think_bos_id"],
            think_eos=talker["codec_think_eos_id"],
        ),
        languages=dict(talker["codec_language_id"]),
        speakers={name.lower(): row for name, row in talker["spk_id"].items()},
        dialects={
            name.lower(): dialect for name, dialect in talker["spk_is_dialect"].items() if dialect
        },
        generation=GenerationDefaults(
            do_sample=generation["do_sample"],
            temperature=generation["temperature"],
            top_k=generation["top_k"],
            top_p=generation["top_p"],
            repetition_penalty=generation["repetition_penalty"],
            predictor_do_sample=generation["subtalker_dosample"],
            predictor_temperature=generation["subtalker_temperature"],
            predictor_top_k=generation["subtalker_top_k"],
            predictor_top_p=generation["subtalker_top_p"],
            max_new_tokens=generation["max_new_tokens"],
            non_streaming_mode=generation.get("non_streaming_mode"),
        ),
    )
