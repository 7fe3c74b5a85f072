"""Speech of fixed texts: verify compares it, and the int8 codec decoder is calibrated with it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    PresetSpeaker,
    SynthesisRequest,
    Voice,
    XVectorVoice,
    default_options,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

_TEXTS: Final = (
    "The light in the kitchen is on, and dinner will be ready at half past seven.",
    "Guten Morgen! Heute wird es sonnig, bei höchstens dreiundzwanzig Grad.",
    "今天天气很好，我们去公园散步吧。",
    "Someone is at the front door.",
)
_REFERENCE_TEXT: Final = "This is how I sound when I read a sentence."
_DESCRIPTION: Final = "A calm, low voice that speaks slowly."
_CLIP_SECONDS: Final = 2.3  # not a whole number of frames
_SEED: Final = 20_240


@dataclass(frozen=True, eq=False)
class EncodedClip:
    """A synthetic clip as a Base model encodes it: (F, G) and (D,); None for other models."""

    codes: Int64Array | None
    x_vector: Float32Array | None


def encode_clip(model: SpeechModel) -> EncodedClip:
    """Encode a clip of gliding harmonics in syllables, and noise."""
    rate = model.facts.sample_rate_hz
    times = np.arange(round(_CLIP_SECONDS * rate)) / rate
    phase = 2 * np.pi * np.cumsum(130 + 13 * np.sin(4.4 * times)) / rate
    voiced = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 30))
    syllables = np.clip(np.sin(22 * times) + 0.5, 0, 1)
    noise = np.random.default_rng(_SEED).standard_normal(len(times))
    samples = np.asarray(0.2 * voiced * syllables + 0.003 * noise, np.float32)
    return EncodedClip(
        codes=model.codec_encoder(samples) if model.codec_encoder else None,
        x_vector=model.speaker_encoder(samples) if model.speaker_encoder else None,
    )


def trial_requests(
    model: SpeechModel, clip: EncodedClip, num_frames: int, *, greedy: bool
) -> list[SynthesisRequest]:
    """Return requests that give up to ``num_frames`` frames, in several languages and voices."""
    options = default_options(model.facts.generation, _SEED)
    options = replace(options.greedy() if greedy else options, max_frames=num_frames // len(_TEXTS))
    voices: list[Voice] = [DesignedVoice(_DESCRIPTION)]
    if model.facts.model_type == "custom_voice":
        names = sorted(model.facts.speakers)
        voices = [PresetSpeaker(name) for name in (names[0], names[-1])]
    elif clip.x_vector is not None and clip.codes is not None:
        voices = [XVectorVoice(clip.x_vector), IclVoice(clip.x_vector, _REFERENCE_TEXT, clip.codes)]
    pairs = zip(_TEXTS, itertools.cycle(voices), strict=False)
    return [SynthesisRequest(text, voice, options) for text, voice in pairs]


def speak(
    model: SpeechModel, requests: Sequence[SynthesisRequest], num_lanes: int = 1
) -> list[Int64Array]:
    """Return the frames (F, G) of each request; raise the SynthesisError of one that failed."""
    synthesizer = Synthesizer(model, max_lanes=num_lanes)
    utterances = [synthesizer.submit(request) for request in requests]
    while not synthesizer.is_blocked:
        synthesizer.step()
    for utterance in utterances:
        if utterance.error is not None:
            raise utterance.error
    return [utterance.codes for utterance in utterances]
