"""What a caller asks for: a text, a voice and options."""

import secrets
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.runtime.manifest import GenerationDefaults, ModelFacts
from wyoming_qwen3tts.runtime.sampling import SamplingOptions
from wyoming_qwen3tts.runtime.speech_model import CodecState
from wyoming_qwen3tts.synthesis.timing import Playback

_SEED_BITS = 63


@dataclass(frozen=True)
class PresetSpeaker:
    """A speaker that a CustomVoice model was trained on."""

    kind: ClassVar[str] = "preset"
    model_type: ClassVar[str] = "custom_voice"
    name: str  # case does not matter


@dataclass(frozen=True)
class DesignedVoice:
    """A voice described in words, for a VoiceDesign model."""

    kind: ClassVar[str] = "designed"
    model_type: ClassVar[str] = "voice_design"
    description: str  # may be empty: the model then chooses a voice


@dataclass(frozen=True, eq=False)
class XVectorVoice:
    """The timbre of a reference clip, for a Base model."""

    kind: ClassVar[str] = "x-vector"
    model_type: ClassVar[str] = "base"
    x_vector: Float32Array  # (D,): the speaker encoder's output; D is the model's width


@dataclass(frozen=True, eq=False)
class IclVoice:
    """A reference clip that speech continues from (in-context learning), for a Base model."""

    kind: ClassVar[str] = "icl"
    model_type: ClassVar[str] = "base"
    x_vector: Float32Array  # (D,)
    reference_text: str  # what the clip says
    reference_codes: Int64Array  # (F, G): the codec encoder's output
    codec_state: CodecState | None = None  # the codec decoder's after the clip; None computes it


Voice: TypeAlias = PresetSpeaker | DesignedVoice | XVectorVoice | IclVoice


class TextLayout(StrEnum):
    """How the text reaches the talker."""

    # The whole text is in the prompt; the official default except for cloned voices.
    NON_STREAMING = "non_streaming"
    # One text token per frame, so that text may still arrive during synthesis.
    STREAMING = "streaming"


@dataclass(frozen=True)
class SynthesisOptions:
    """Options of one utterance; the defaults are the official ones of a checkpoint."""

    talker: SamplingOptions
    predictor: SamplingOptions
    max_frames: int  # of 80 ms
    language: str | None = None  # as the model spells it ("german"); None lets the model decide
    instruction: str | None = None  # how to speak, for CustomVoice models that follow it
    layout: TextLayout | None = None  # None takes the official default of the voice's kind
    seed: int = field(default_factory=lambda: secrets.randbits(_SEED_BITS))

    def greedy(self) -> "SynthesisOptions":
        """Return the same options without sampling: always the most probable code."""
        return replace(
            self,
            talker=replace(self.talker, do_sample=False),
            predictor=replace(self.predictor, do_sample=False),
        )

    def with_sampling(
        self, temperature: float | None, top_k: int | None, top_p: float | None
    ) -> "SynthesisOptions":
        """Return the options with other sampling of the talker; None changes nothing.

        Temperature 0 is greedy. The code predictor keeps what its checkpoint asks for.
        """
        if temperature == 0:
            return self.greedy()
        do_sample = None if temperature is None else True
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "do_sample": do_sample}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        return replace(self, talker=replace(self.talker, **changes))


@dataclass(frozen=True)
class SynthesisRequest:
    """One utterance to make."""

    text: str
    voice: Voice
    options: SynthesisOptions
    position: int = 0  # of the utterance in its answer
    playback: Playback | None = None  # of its answer; decides the order of its utterances
    # Trim the silence at both ends and end runaway speech: the samples are then no longer exactly
    # those of the frames.
    guarded: bool = False
    is_open: bool = False  # more text follows


def default_options(defaults: GenerationDefaults, seed: int | None = None) -> SynthesisOptions:
    """Return the official options of a checkpoint."""
    options = SynthesisOptions(
        talker=SamplingOptions(
            do_sample=defaults.do_sample,
            temperature=defaults.temperature,
            top_k=defaults.top_k,
            top_p=defaults.top_p,
            repetition_penalty=defaults.repetition_penalty,
        ),
        predictor=SamplingOptions(
            do_sample=defaults.predictor_do_sample,
            temperature=defaults.predictor_temperature,
            top_k=defaults.predictor_top_k,
            top_p=defaults.predictor_top_p,
        ),
        # The official limit counts the last sampled token, which never becomes a frame.
        max_frames=defaults.max_new_tokens - 1,
    )
    return options if seed is None else replace(options, seed=seed)


def check_voice(facts: ModelFacts, voice: Voice) -> None:
    """Raise RequestError if a model was not trained for this voice."""
    name = voice.name.lower() if isinstance(voice, PresetSpeaker) else None
    if facts.model_type != voice.model_type or name not in {None, *facts.speakers}:
        what = f"a voice of the kind {voice.kind}" if name is None else f"the voice {name[:100]!r}"
        raise RequestError(
            f"The model {facts.model_size} {facts.model_type} cannot speak with {what}; choose "
            "another voice or model."
        )
