"""What speaks: the four kinds of voice, and which model can do which."""

from dataclasses import dataclass
from typing import TypeAlias

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.runtime.facts import ModelFacts


@dataclass(frozen=True)
class PresetSpeaker:
    """A speaker that a CustomVoice model was trained on."""

    name: str
    """As the user wrote it; matched case-blind."""


@dataclass(frozen=True)
class DesignedVoice:
    """A voice described in words, for a VoiceDesign model."""

    description: str
    """May be empty: the model then chooses a voice."""


@dataclass(frozen=True, eq=False)
class XVectorVoice:
    """The timbre of a reference clip, for a Base model."""

    x_vector: Float32Array
    """(D,): the speaker encoder's output; D is the model's width."""


@dataclass(frozen=True, eq=False)
class IclVoice:
    """A reference clip that speech continues from (in-context learning), for a Base model."""

    x_vector: Float32Array
    """(D,)."""
    reference_text: str
    """What the clip says."""
    reference_codes: Int64Array
    """(F, G): the codec encoder's output."""


Voice: TypeAlias = PresetSpeaker | DesignedVoice | XVectorVoice | IclVoice

_KINDS: dict[type, tuple[str, str]] = {
    PresetSpeaker: ("custom_voice", "a preset speaker"),
    DesignedVoice: ("voice_design", "a voice description"),
    XVectorVoice: ("base", "a reference clip"),
    IclVoice: ("base", "a reference clip"),
}


def describe_abilities(facts: ModelFacts) -> str:
    """Say in one clause what a model speaks with."""
    match facts.model_type:
        case "custom_voice":
            speakers = ", ".join(sorted(facts.speakers))
            style = " and takes an instruction" if facts.follows_instructions else ""
            return f"speaks with its preset speakers ({speakers}){style}"
        case "voice_design":
            return "speaks with a voice that you describe in words"
        case _:
            return "clones the voice of a reference clip"


def check_voice(facts: ModelFacts, voice: Voice) -> None:
    """Check that a model was trained for this kind of voice.

    Raises:
        RequestError: It was not, or it has no such speaker; the message names what it can do.
    """
    model_type, given = _KINDS[type(voice)]
    if facts.model_type != model_type:
        raise RequestError(
            f"This model ({facts.model_size} {facts.model_type}) cannot use {given}: "
            f"it {describe_abilities(facts)}."
        )
    if isinstance(voice, PresetSpeaker) and voice.name.lower() not in facts.speakers:
        raise RequestError(
            f"Unknown speaker {voice.name[:100]!r}: this model {describe_abilities(facts)}."
        )
