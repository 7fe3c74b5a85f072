"""What models are compared on: fixed texts, and sounds and codes drawn from a fixed seed."""

from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    PresetSpeaker,
    Voice,
    XVectorVoice,
)

SEED: Final = 20_240

TEXTS: Final = (
    "The light in the kitchen is on, and dinner will be ready at half past seven.",
    "Guten Morgen! Heute wird es sonnig, bei höchstens dreiundzwanzig Grad.",
    "今天天气很好，我们去公园散步吧。",
    "Someone is at the front door.",
    "¿Quieres que apague la calefacción esta noche?",
    "The washing machine has finished. Shall I remind you again in ten minutes?",
)
REFERENCE_TEXT: Final = "This is how I sound when I read a sentence."

CLIP_SECONDS: Final = (0.71, 2.3)
"""No multiples of a frame, and one longer than a second."""

_DESCRIPTION: Final = "A calm, low voice that speaks slowly."


def seeded_clip(duration_s: float, sample_rate_hz: int) -> Float32Array:
    """Return samples (S,) that behave like speech: gliding harmonics in syllables, and noise."""
    times = np.arange(round(duration_s * sample_rate_hz)) / sample_rate_hz
    pitch_hz = 130 * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * times))
    phase = 2 * np.pi * np.cumsum(pitch_hz) / sample_rate_hz
    formant_hz = 700 + 300 * np.sin(2 * np.pi * 1.1 * times)
    voiced = np.zeros_like(times)
    for harmonic in range(1, 40):
        gain = 0.05 + np.exp(-(((harmonic * pitch_hz - formant_hz) / 250) ** 2))
        voiced += gain / np.sqrt(harmonic) * np.sin(harmonic * phase)
    voiced *= np.clip(np.sin(2 * np.pi * 3.5 * times) + 0.5, 0, 1)
    noise = np.random.default_rng(SEED).standard_normal(len(times))
    samples: Float32Array = (0.5 * voiced / np.abs(voiced).max() + 0.003 * noise).astype(np.float32)
    return samples


def random_codes(num_frames: int, facts: ModelFacts) -> Int64Array:
    """Return codes (F, G) that no model would speak, but that reach every code group alike."""
    shape = (num_frames, facts.num_code_groups)
    return np.random.default_rng(SEED).integers(0, facts.codebook_size, shape)


def permuted_codes(facts: ModelFacts) -> Int64Array:
    """Return codes (C, G) with every code of every group once, each group in an order of its own.

    So the embeddings of these frames depend on every row, and on which group a row belongs to.
    """
    rng = np.random.default_rng(SEED)
    columns = [rng.permutation(facts.codebook_size) for _ in range(facts.num_code_groups)]
    return np.stack(columns, axis=1).astype(np.int64)


def voices_for(
    facts: ModelFacts, x_vector: Float32Array | None, reference_codes: Int64Array | None
) -> list[Voice]:
    """Return voices that a model can speak with; a Base model needs what its encoders gave."""
    if facts.model_type == "voice_design":
        return [DesignedVoice(_DESCRIPTION)]
    if facts.model_type == "custom_voice":
        names = sorted(facts.speakers)
        return [PresetSpeaker(name) for name in (names[0], names[-1])]
    if x_vector is None or reference_codes is None:
        return []
    return [
        XVectorVoice(x_vector),
        IclVoice(x_vector, REFERENCE_TEXT, reference_codes),
    ]
