"""What is measured: the machine, our speech, and the graphs of a peer's design."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.graphs import open_session
from wyoming_qwen3tts.runtime.manifest import ModelFacts
from wyoming_qwen3tts.runtime.speech_model import TalkerOutput
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    PresetSpeaker,
    SynthesisRequest,
    Voice,
    XVectorVoice,
    default_options,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.timing import Playback

_NEVER: Final = -1e9
_READ_BYTES: Final = 256 * 2**20  # far larger than any cache
_MATRIX_SIZE: Final = 1024
_TRIES: Final = 7
_GIGA: Final = 1e9


class SpeechSubject:
    """One bundle, opened as the server opens it."""

    def __init__(self, bundle_directory: str, max_lanes: int, num_threads: int) -> None:
        model = open_bundle(Path(bundle_directory), num_threads)
        self._parts = {
            "talker": _Timed(model.talker),
            "code_predictor": _Timed(model.code_predictor),
            "codec_decoder": _Timed(model.codec_decoder),
        }
        timed: dict[str, Any] = dict(self._parts)
        self._model = replace(model, **timed)
        self._voice = _any_voice(model.facts)
        self._synthesizer = Synthesizer(self._model, max_lanes=max_lanes)

    def run(
        self, _task: str, texts: Sequence[str], frames: Sequence[int], *, is_answer: bool = False
    ) -> dict[str, Any]:
        """Submit all texts at once and speak until the last one ends.

        Args:
            texts: One for each utterance.
            frames: Frames of each utterance.
            is_answer: The texts are sentences of one answer: what is heard next goes first.
        """
        for part in self._parts.values():
            part.durations_s.clear()
        playback = Playback() if is_answer else None
        started_s = time.perf_counter()
        utterances = []
        for seed, (text, num_frames) in enumerate(zip(texts, frames, strict=True)):
            options = default_options(self._model.facts.generation, seed)
            request = SynthesisRequest(
                text,
                self._voice,
                replace(options, max_frames=num_frames),
                position=seed if is_answer else 0,
                playback=playback,
            )
            utterances.append(self._synthesizer.submit(request))
        while not self._synthesizer.is_blocked:
            self._synthesizer.step()
            for utterance in utterances:
                utterance.take_audio()
        wall_s = time.perf_counter() - started_s
        for utterance in utterances:
            if utterance.error is not None:
                raise utterance.error
        talker = self._parts["talker"].durations_s
        first_s = [each.timing.first_audio_s or started_s + wall_s for each in utterances]
        return {
            "wall_s": wall_s,
            "num_frames": sum(utterance.timing.num_frames for utterance in utterances),
            "prefill_s": sum(talker.get("prefill", ())),
            "talker_s": sum(talker.get("step", ())),
            "predictor_s": self._parts["code_predictor"].total_s,
            "codec_s": self._parts["codec_decoder"].total_s,
            "first_audio_ms": [(each_s - started_s) * 1e3 for each_s in first_s],
        }


class PeerSubject:
    """The design of the onnx-community bundles, graph by graph.

    It is measured in the way that suits it best: the cache moves from run to run without a copy,
    sampling is not counted, and the codec decodes 25 new frames in each run.
    """

    def __init__(self, bundle_directory: str, graphs: Sequence[str], num_threads: int) -> None:
        self._talker, self._predictor, self._codec = (
            open_session(Path(bundle_directory) / f"{name}.onnx", num_threads=num_threads)
            for name in graphs
        )

    def run(self, _task: str, num_frames: int, past: int) -> dict[str, Any]:
        """Return milliseconds per frame of each graph, medians of ``num_frames`` frames.

        Args:
            num_frames: Frames to make.
            past: Positions in the talker's cache at the first frame.
        """
        talker_ms, predictor_ms = [], []
        step, predict, decode = self._talker_step(past), self._predict(), self._decode()
        for _ in range(num_frames):
            talker_ms.append(_elapsed_ms(step))
            predictor_ms.append(_elapsed_ms(predict))
        frames_per_run = self._codec.get_inputs()[0].shape[1]
        return {
            "talker_ms": median(talker_ms),
            "predictor_ms": median(predictor_ms),
            "codec_ms": median(_elapsed_ms(decode) for _ in range(2)) / frames_per_run,
        }

    def _talker_step(self, past: int) -> Callable[[], None]:
        embeddings, positions, mask, *cache = self._talker.get_inputs()
        outputs = [value.name for value in self._talker.get_outputs()]
        constant = ort.OrtValue.ortvalue_from_numpy(
            np.full((1, 1, embeddings.shape[2]), 0.01, np.float32)
        )
        state = [
            ort.OrtValue.ortvalue_from_numpy(
                np.zeros((1, value.shape[1], past, value.shape[3]), np.float32)
            )
            for value in cache
        ]
        position = past

        def step() -> None:
            nonlocal state, position
            where = np.full((positions.shape[0], 1, 1), position, np.int64)
            seen = np.ones((1, position + 1), np.int64)
            feeds = {value.name: kept for value, kept in zip(cache, state, strict=True)}
            feeds[embeddings.name] = constant
            feeds[positions.name] = ort.OrtValue.ortvalue_from_numpy(where)
            feeds[mask.name] = ort.OrtValue.ortvalue_from_numpy(seen)
            _, _, *state = self._talker.run_with_ort_values(outputs, feeds)
            position += 1

        return step

    def _predict(self) -> Callable[[], None]:
        hidden, codes = self._predictor.get_inputs()
        constant = np.full((1, hidden.shape[1]), 0.01, np.float32)

        def predict() -> None:
            # One run per group; each run computes all groups again.
            known = np.zeros((1, codes.shape[1]), np.int64)
            for group in range(1, codes.shape[1]):
                feeds = {hidden.name: constant, codes.name: known}
                (scores,) = self._predictor.run(None, feeds)
                known[0, group] = np.argmax(scores[0, group - 1])

        return predict

    def _decode(self) -> Callable[[], None]:
        (codes,) = self._codec.get_inputs()
        feeds = {codes.name: np.zeros((1, *codes.shape[1:]), np.int64)}
        return lambda: self._codec.run(None, feeds)


class MachineSubject:
    """What the machine can do: read memory, multiply in float32."""

    def __init__(self, num_threads: int) -> None:
        size = _READ_BYTES // 4 // num_threads
        self._blocks = [np.ones(size, np.float32) for _ in range(num_threads)]
        generator = np.random.default_rng(0)
        shape = (_MATRIX_SIZE, _MATRIX_SIZE)
        self._matrices = [generator.random(shape, np.float32) for _ in range(num_threads)]

    def run(self, _task: str) -> dict[str, Any]:
        """Return GB/s (median of the tries) and Gflop/s in float32 (best of the tries)."""
        operations = 2 * _MATRIX_SIZE**3
        read_s = min(
            median(_tries_s(lambda: _in_threads(self._blocks, lambda block: np.dot(block, block)))),
            median(_tries_s(lambda: _in_threads(self._blocks, _or_reduce))),
        )
        multiply_s = min(_tries_s(lambda: _in_threads(self._matrices, lambda m: np.matmul(m, m))))
        return {
            "read_gb_per_s": sum(block.nbytes for block in self._blocks) / read_s / _GIGA,
            "fp32_gflops": len(self._matrices) * operations / multiply_s / _GIGA,
        }


class _Timed:
    """Passes everything on to a component of the model and records how long each call took."""

    def __init__(self, component: object) -> None:
        self._component = component
        self.durations_s: dict[str, list[float]] = {}

    @property
    def total_s(self) -> float:
        return sum(map(sum, self.durations_s.values()))

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._component, name)
        if not callable(attribute):
            return attribute

        def timed(*args: Any, **kwargs: Any) -> Any:
            started_s = time.perf_counter()
            result = attribute(*args, **kwargs)
            self.durations_s.setdefault(name, []).append(time.perf_counter() - started_s)
            if isinstance(result, TalkerOutput):
                result.logits[:, -1] = _NEVER  # the end of speech
            return result

        return timed


def _any_voice(facts: ModelFacts) -> Voice:
    if facts.model_type == "custom_voice":
        return PresetSpeaker(min(facts.speakers))
    if facts.model_type == "voice_design":
        return DesignedVoice("A calm voice.")
    return XVectorVoice(np.zeros(facts.hidden_size, np.float32))


def _or_reduce(block: AnyArray) -> object:
    return np.bitwise_or.reduce(block.view(np.int64))


def _in_threads(arrays: Sequence[AnyArray], work: Callable[[AnyArray], object]) -> None:
    """Work on every array in a thread of its own; numpy releases the interpreter lock."""
    threads = [threading.Thread(target=work, args=(array,)) for array in arrays[1:]]
    for thread in threads:
        thread.start()
    work(arrays[0])
    for thread in threads:
        thread.join()


def _tries_s(work: Callable[[], object]) -> list[float]:
    return [_elapsed_ms(work) / 1e3 for _ in range(_TRIES)]


def _elapsed_ms(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return (time.perf_counter() - started_s) * 1e3
