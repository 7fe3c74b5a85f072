"""Measures the product: texts through the synthesizer, with the time of each component."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from script._benchmark.playing import stopped_s
from script._benchmark.timing import MS_PER_S, TimedComponent, durations_ms
from wyoming_qwen3tts.runtime.bundle import SessionOptions, open_bundle
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, SpeechModel, TalkerOutput
from wyoming_qwen3tts.synthesis.options import SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.playback import Playback
from wyoming_qwen3tts.synthesis.prefix_cache import PrefixCache
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.voice import DesignedVoice, PresetSpeaker, Voice, XVectorVoice

_NEVER: Final = -1e9
_PARTS_RUNS: Final = 5
_PARTS_LIMIT_S: Final = 2.0


class SpeechSubject:
    """One bundle, opened as the server opens it, with a fixed number of lanes."""

    def __init__(self, bundle_directory: Path, max_lanes: int, num_threads: int) -> None:
        model = open_bundle(bundle_directory, SessionOptions(num_threads=num_threads))
        self._talker = TimedComponent(model.talker, _without_end)
        self._predictor = TimedComponent(model.code_predictor)
        self._codec = TimedComponent(model.codec_decoder)
        timed: dict[str, Any] = {
            "talker": self._talker,
            "code_predictor": self._predictor,
            "codec_decoder": self._codec,
        }
        self._model: SpeechModel = replace(model, **timed)
        self._voice = _any_voice(model.facts)
        self._synthesizer = Synthesizer(self._model, max_lanes=max_lanes)

    def run(self, task: str, **arguments: Any) -> dict[str, Any]:
        """Measure ``speak`` or ``first_audio_parts``; see the methods of these names."""
        if task == "speak":
            return self.speak(**arguments)
        return self.first_audio_parts(**arguments)

    def speak(
        self, texts: Sequence[str], frames: Sequence[int], *, is_answer: bool = False
    ) -> dict[str, Any]:
        """Submit all texts at once and speak until the last one ends.

        Args:
            texts: One for each utterance.
            frames: How many frames to make of each.
            is_answer: The utterances are heard one after the other, as in the server: what is heard
                next goes before the others.
        """
        components = (self._talker, self._predictor, self._codec)
        for component in components:
            component.reset()
        started_s = time.perf_counter()
        playback = Playback() if is_answer else None
        speeches = [
            self._synthesizer.submit(
                replace(
                    self._request(text, num_frames, seed),
                    position=seed if is_answer else 0,
                    playback=playback,
                )
            )
            for seed, (text, num_frames) in enumerate(zip(texts, frames, strict=True))
        ]
        made: list[list[tuple[float, float]]] = [[] for _ in speeches]
        while not self._synthesizer.is_idle:
            self._synthesizer.step()
            now_s = time.perf_counter()
            for pieces, speech in zip(made, speeches, strict=True):
                pieces += [(now_s, chunk.duration_s) for chunk in speech.take_audio()]
        wall_s = time.perf_counter() - started_s
        for speech in speeches:
            if speech.error is not None:
                raise speech.error
        prefill_s = self._talker.total_s("prefill")
        return {
            "wall_s": wall_s,
            "num_frames": sum(speech.timing.num_frames for speech in speeches),
            "num_samples": sum(speech.timing.num_samples for speech in speeches),
            "prefill_s": prefill_s,
            "talker_s": self._talker.total_s() - prefill_s,
            "predictor_s": self._predictor.total_s(),
            "codec_s": self._codec.total_s(),
            "talker_step_ms": self._talker.median_ms("step"),
            "predictor_run_ms": self._predictor.median_ms("predict"),
            "stopped_s": stopped_s(made),
            "first_audio_ms": [(speech.timing.ttfa_s or wall_s) * MS_PER_S for speech in speeches],
        }

    def first_audio_parts(self, text: str) -> dict[str, Any]:
        """Measure what first audio is made of, each part by itself.

        The voice's share of the prompt is in the prefix cache, as after the first utterance.
        """
        options = default_options(self._model.facts.generation, seed=0)
        prompt = PromptBuilder(self._model).build(text, self._voice, options)
        talker, decoder = self._model.talker, self._model.codec_decoder
        cache = talker.new_cache(1, len(prompt.embeddings))
        prefixes = PrefixCache()
        output = prefixes.prefill(talker, prompt, cache, 0)
        sampling = _official_sampling(self._model.facts)
        code0 = np.zeros(1, np.int64)

        def prefill() -> None:
            cache.rewind(0, 0)
            prefixes.prefill(talker, prompt, cache, 0)

        def predict() -> None:
            self._model.code_predictor.predict(output.hidden[:1], code0, sampling)

        frame = np.zeros((1, self._model.facts.num_code_groups), np.int64)

        def decode() -> None:
            decoder.decode(frame, decoder.initial_state())

        parts = {"prefill_ms": prefill, "frame_ms": predict, "decode_ms": decode}
        return {
            name: median(durations_ms(part, num_runs=_PARTS_RUNS, limit_s=_PARTS_LIMIT_S))
            for name, part in parts.items()
        }

    def _request(self, text: str, num_frames: int, seed: int) -> SynthesisRequest:
        options = default_options(self._model.facts.generation, seed)
        return SynthesisRequest(text, self._voice, replace(options, max_frames=num_frames))


def _without_end(result: Any) -> Any:
    """Make end of speech impossible, so that every utterance has the length that was asked for."""
    if not isinstance(result, TalkerOutput):
        return result
    logits = result.logits.copy()
    logits[:, -1] = _NEVER
    return result._replace(logits=logits)


def _any_voice(facts: ModelFacts) -> Voice:
    match facts.model_type:
        case "custom_voice":
            return PresetSpeaker(min(facts.speakers))
        case "voice_design":
            return DesignedVoice("A calm voice.")
        case _:
            return XVectorVoice(np.zeros(facts.hidden_size, np.float32))


def _official_sampling(facts: ModelFacts) -> PredictorSampling:
    defaults = facts.generation
    return PredictorSampling(
        uniforms=np.full((1, facts.num_code_groups - 1), 0.5, np.float32),
        temperature=np.array([defaults.predictor_temperature], np.float32),
        top_k=np.array([defaults.predictor_top_k], np.int64),
        top_p=np.array([defaults.predictor_top_p], np.float32),
    )
