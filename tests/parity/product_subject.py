"""The product's own synthesis, to be compared with the official package."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.parity import cases
from tests.parity.cases import Case
from tests.parity.subject import Utterance as SpokenCase
from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    PresetSpeaker,
    SynthesisOptions,
    SynthesisRequest,
    TextLayout,
    Voice,
    XVectorVoice,
    default_options,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.utterance import Utterance


def open_product(checkpoint: Path, bundle: Path) -> SpeechModel:
    """Open the float32 bundle of a checkpoint; build it where there is none yet."""
    if not bundle.exists():
        options = BuildOptions(recipe=uniform_recipe("fp32"), name=checkpoint.name.lower())
        build_bundle(checkpoint, bundle, options)
    return open_bundle(bundle, 1)


class ProductSubject:
    """A bundle made by the builder, spoken by the synthesizer."""

    def __init__(self, model: SpeechModel, *, num_lanes: int = 1) -> None:
        """Speak up to ``num_lanes`` cases side by side."""
        self._model = model
        self._synthesizer = Synthesizer(model, max_lanes=num_lanes)

    def speak(self, batch: Sequence[Case]) -> list[SpokenCase | None]:
        """Speak all cases; they share the lanes."""
        speeches = [self._submit(case) for case in batch]
        while not self._synthesizer.is_blocked:
            self._synthesizer.step()
        return [None if speech is None else _utterance(speech) for speech in speeches]

    def _submit(self, case: Case) -> Utterance | None:
        voice = self._voice(case)
        if voice is None:
            return None
        return self._synthesizer.submit(
            SynthesisRequest(case.text, voice, self._options(case, voice))
        )

    def _options(self, case: Case, voice: Voice) -> SynthesisOptions:
        defaults = default_options(self._model.facts.generation, seed=0).greedy()
        return SynthesisOptions(
            talker=defaults.talker,
            predictor=defaults.predictor,
            # The official limit counts the last token, which never becomes a frame.
            max_frames=cases.MAX_NEW_TOKENS - 1,
            language=case.language,
            instruction=None if isinstance(voice, DesignedVoice) else case.instruction,
            layout=TextLayout(case.layout),
            seed=0,
        )

    def _voice(self, case: Case) -> Voice | None:
        if case.voice == "designed":
            return DesignedVoice(case.instruction or "")
        if case.voice == "preset":
            # Without a speaker the official package speaks with a random timbre; not offered.
            return None if case.speaker is None else PresetSpeaker(case.speaker)
        reference = cases.clip(case.reference_samples)
        x_vector = self.embed(reference)
        if case.reference_text is None:
            return XVectorVoice(x_vector)
        return IclVoice(x_vector, case.reference_text, self.encode(reference))

    def decode(self, codes: Int64Array, chunk_frames: int) -> Float32Array:
        """Decode codes (F, G) in chunks into samples (S,)."""
        decoder = self._model.codec_decoder
        state, chunks = decoder.initial_state(), []
        for start in range(0, len(codes), chunk_frames):
            samples, state = decoder.decode(codes[start : start + chunk_frames], state)
            chunks.append(samples)
        return np.concatenate(chunks)

    def encode(self, samples: Float32Array) -> Int64Array:
        """Encode samples (S,) into codes (F, G)."""
        if self._model.codec_encoder is None:
            raise ValueError("this bundle has no codec encoder")
        return self._model.codec_encoder(samples)

    def embed(self, samples: Float32Array) -> Float32Array:
        """Return the x-vector (D,) of samples (S,)."""
        if self._model.speaker_encoder is None:
            raise ValueError("this bundle has no speaker encoder")
        return self._model.speaker_encoder(samples)


def _utterance(speech: Utterance) -> SpokenCase:
    if speech.error is not None:
        raise speech.error
    samples = [chunk.samples for chunk in speech.take_audio()]
    return SpokenCase(speech.codes, np.concatenate(samples))
