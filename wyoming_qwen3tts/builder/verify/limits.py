"""How far a bundle may be from float32: data, each with its reason.

Limits tell a sound quantisation from damage, from a wrong file and from a wrong graph. They do not
say how good a bundle sounds: only listening, or a word error rate, says that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wyoming_qwen3tts.builder.verify.report import Limit

_EXACT: Final = "a float32 bundle speaks the codes of its checkpoint, all of them"
_RANDOM: Final = "random weights of the published dimensions"
_HALF: Final = "rounding to float16 leaves 11 bits of every weight"


@dataclass(frozen=True)
class WeightLimit:
    """How far a stored weight may be from the checkpoint's."""

    lowest_snr_db: float
    most_steps: float
    """Steps of the stored type."""
    reason: str


WEIGHT_LIMITS: Final[Mapping[str, WeightLimit]] = {
    "fp32": WeightLimit(110.0, 64.0, "float32 holds what the checkpoint's bfloat16 holds"),
    "fp16": WeightLimit(55.0, 4.0, _HALF),
    # Measured on weights drawn from normal, Laplace and Student's t distributions (2 and 3 degrees
    # of freedom): at least 34 dB and 14.5 dB, and no value off by more than 2.0 and 3.2 steps.
    "int8": WeightLimit(28.0, 4.0, "even weights with heavy tails keep 34 dB and 2 steps"),
    "int4": WeightLimit(10.0, 5.0, "even weights with heavy tails keep 14 dB and 3 steps"),
}

_LANGUAGE: Final[Mapping[str, tuple[Limit, ...]]] = {
    "fp32": (
        Limit("agreement", 1.0, _EXACT),
        Limit("cosine", 0.999999, "only the order of additions may differ"),
    ),
    "fp16": (
        Limit("agreement", 0.9, "near ties may fall the other way"),
        Limit("cosine", 0.9999, _HALF),
    ),
}

LIMITS: Final[Mapping[str, Mapping[str, tuple[Limit, ...]]]] = {
    "tokenizer": {
        "": (Limit("equal_texts", 1.0, "other ids are another text"),),
    },
    "embeddings": {
        "fp32": (Limit("lowest_row_cosine", 0.999999, "the tables are copied"),),
        "fp16": (Limit("lowest_row_cosine", 0.9999, _HALF),),
        "int8": (Limit("lowest_row_cosine", 0.999, "8 bits per value"),),
        "int4": (Limit("lowest_row_cosine", 0.9, "4 bits per value"),),
    },
    "talker": {
        **_LANGUAGE,
        "int8": (
            Limit("agreement", 0.8, f"published int8 measurements find 0.97, {_RANDOM} 0.96"),
            Limit("cosine", 0.995, f"of all scores; {_RANDOM} have 0.9995"),
        ),
        "int4": (
            Limit("agreement", 0.3, f"published int4 measurements find 0.84, {_RANDOM} 0.52"),
            Limit("cosine", 0.85, f"of all scores; {_RANDOM} have 0.94"),
        ),
    },
    "code_predictor": {
        **_LANGUAGE,
        "int8": (
            Limit("agreement", 0.6, f"published int8 measurements find 0.79, {_RANDOM} 0.92"),
            Limit("cosine", 0.995, f"of all scores; {_RANDOM} have 0.9994"),
        ),
        "int4": (
            Limit("agreement", 0.25, f"published int4 measurements find 0.46, {_RANDOM} 0.46"),
            Limit("cosine", 0.85, f"of all scores; {_RANDOM} have 0.94"),
        ),
    },
    "codec_decoder": {
        "fp32": (Limit("snr_db", 80.0, "float32 noise through some hundred convolutions"),),
        "fp16": (Limit("snr_db", 30.0, "published float16 decoders reach 37 dB"),),
        "int8": (Limit("snr_db", 25.0, "a scale that does not fit goes far below it"),),
        "int4": (Limit("snr_db", 20.0, "a scale that does not fit goes far below it"),),
    },
    "codec_encoder": {
        "fp32": (Limit("equal_codes", 1.0, "other codes are another reference"),),
        "fp16": (Limit("equal_codes", 0.9, "near ties may fall the other way"),),
        "int8": (Limit("equal_codes", 0.7, "near ties may fall the other way"),),
        "int4": (Limit("equal_codes", 0.5, "near ties may fall the other way"),),
    },
    "speaker_encoder": {
        "fp32": (Limit("cosine", 0.999999, "another x-vector is another timbre"),),
        "fp16": (Limit("cosine", 0.9999, "another x-vector is another timbre"),),
        "int8": (Limit("cosine", 0.99, "another x-vector is another timbre"),),
        "int4": (Limit("cosine", 0.95, "another x-vector is another timbre"),),
    },
    "free_running": {
        "fp32": (Limit("equal_codes", 1.0, _EXACT),),
        # Coarser models diverge after some frames, as two seeds do; lengths alone can be held
        # against them, and only over more speech than is compared here.
    },
}
"""Component -> coarsest precision of its weights -> limits."""

PUBLISHED_LIMITS: Final[Mapping[str, tuple[Limit, ...]]] = {
    "codec_decoder": (
        Limit(
            "snr_db",
            8.0,
            "windows of 25 frames know less of the past than the codec attends to: random weights "
            "keep 14 dB",
        ),
    ),
    "codec_encoder": (
        Limit(
            "equal_codes",
            0.1,
            "windows of a second know less of the past than the codec attends to: random weights "
            "keep a third of the codes",
        ),
    ),
}
"""What the published layout's graphs cannot reach by their making, instead of :data:`LIMITS`."""


def limits_for(component: str, precision: str | None, layout: str) -> tuple[Limit, ...]:
    """Return the limits of a component."""
    if layout == "published" and component in PUBLISHED_LIMITS:
        return PUBLISHED_LIMITS[component]
    return LIMITS.get(component, {}).get(precision or "", ())
