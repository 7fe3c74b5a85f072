"""What a caller wishes for one utterance."""

import secrets
from dataclasses import dataclass, field, replace
from enum import StrEnum

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.runtime.facts import GenerationDefaults
from wyoming_qwen3tts.runtime.sampling import SamplingOptions
from wyoming_qwen3tts.synthesis.playback import Playback
from wyoming_qwen3tts.synthesis.voice import Voice

# Talker and code predictor read their seeds from one generator; any 64-bit number is a seed.
_SEED_BITS = 63


class TextLayout(StrEnum):
    """How the text reaches the talker."""

    NON_STREAMING = "non_streaming"
    """The whole text is in the prompt; the official default but for cloning."""
    STREAMING = "streaming"
    """One text token per frame, so that text may still arrive while speech is made."""


@dataclass(frozen=True)
class SynthesisOptions:
    """Wishes for one utterance; the defaults are the official ones of a checkpoint."""

    talker: SamplingOptions
    predictor: SamplingOptions
    max_frames: int
    """At most this many frames of 80 ms."""
    language: str | None = None
    """A language as the model spells it ("german"); None lets the model find out."""
    instruction: str | None = None
    """How to speak, in words; only for CustomVoice models that follow instructions."""
    layout: TextLayout | None = None
    """None takes the official default of the voice's kind."""
    seed: int = field(default_factory=lambda: secrets.randbits(_SEED_BITS))
    """The same seed gives the same codes."""

    def greedy(self) -> "SynthesisOptions":
        """Return the same wishes without any chance: always the most probable code."""
        return replace(
            self,
            talker=replace(self.talker, do_sample=False),
            predictor=replace(self.predictor, do_sample=False),
        )


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


def check_options(options: SynthesisOptions) -> None:
    """Check the numbers of a caller's wishes.

    Raises:
        RequestError: A number is out of range; the message names it and the range.
    """
    for name, sampling in (("", options.talker), ("predictor ", options.predictor)):
        if not 0.0 < sampling.temperature <= 10.0:
            raise RequestError(
                f"{name}temperature {sampling.temperature} is not above 0 and at most 10; "
                "use greedy for no chance at all."
            )
        if sampling.top_k < 0:
            raise RequestError(f"{name}top_k {sampling.top_k} is negative; 0 keeps every code.")
        if not 0.0 < sampling.top_p <= 1.0:
            raise RequestError(f"{name}top_p {sampling.top_p} is not above 0 and at most 1.")
    if options.talker.repetition_penalty <= 0.0:
        raise RequestError(
            f"repetition_penalty {options.talker.repetition_penalty} is not above 0; 1 means none."
        )
    if options.max_frames < 1:
        raise RequestError(f"max_frames {options.max_frames} is below 1.")
    if options.seed < 0:
        raise RequestError(f"seed {options.seed} is negative.")


@dataclass(frozen=True)
class SynthesisRequest:
    """One utterance to make."""

    text: str
    voice: Voice
    options: SynthesisOptions
    position: int = 0
    """Place of the utterance in its answer: what is heard first gets a lane first."""
    playback: Playback | None = None
    """The playing of its answer: what is heard next goes before what is heard later."""
    guarded: bool = False
    """Bound the silence at both ends and end what has lost itself; samples are then no longer
    exactly those of the frames."""
