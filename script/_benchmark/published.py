"""Measures the baseline: the published bundles' design, graph by graph.

Its runs are timed alone and in the way that suits it best: the cache goes from run to run without
a copy, drawing is not counted, and the codec decodes 25 new frames in each run, seams and all.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from script._benchmark.timing import MS_PER_S, durations_ms
from wyoming_qwen3tts.runtime.session import open_session

COMPONENTS: Final = ("talker_cache", "code_predictor", "tok_decoder")
"""The graphs that are measured."""

_NUMPY_TYPES: Final = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_CODEC_RUNS: Final = 2
_CODEC_LIMIT_S: Final = 1.0
_MIN_FRAMES: Final = 2


class PublishedSubject:
    """The three graphs of a bundle in the published layout that a frame goes through."""

    def __init__(self, bundle_directory: Path, num_threads: int) -> None:
        sessions = [
            open_session(bundle_directory / f"{name}.onnx", num_threads=num_threads)
            for name in COMPONENTS
        ]
        self._talker, self._predictor, self._codec = sessions

    def run(self, _task: str, num_frames: int, past: int, limit_s: float) -> dict[str, Any]:
        """Return the medians of ``num_frames`` frames, fewer when ``limit_s`` is over.

        Args:
            num_frames: Frames to make.
            past: Positions in the talker's cache at the first one.
            limit_s: Stop early after so many seconds.
        """
        talker = _ConcatenatedTalker(self._talker, past)
        predictor = _TeacherForcedPredictor(self._predictor)
        ends_s = time.perf_counter() + limit_s
        talker_ms: list[float] = []
        predictor_ms: list[float] = []
        while len(talker_ms) < num_frames:
            if len(talker_ms) >= _MIN_FRAMES and time.perf_counter() > ends_s:
                break
            talker_ms.append(_elapsed_ms(talker.step))
            predictor_ms.append(_elapsed_ms(predictor.predict))
        frames_per_run, codec_ms = self._codec_run_ms()
        return {
            "num_frames": len(talker_ms),
            "talker_ms": median(talker_ms),
            "predictor_ms": median(predictor_ms),
            "codec_run_ms": codec_ms,
            "codec_frames_per_run": frames_per_run,
        }

    def _codec_run_ms(self) -> tuple[int, float]:
        (codes,) = self._codec.get_inputs()
        _, num_frames, num_groups = codes.shape
        feeds = {codes.name: np.zeros((1, num_frames, num_groups), np.int64)}
        durations = durations_ms(
            lambda: self._codec.run(None, feeds), num_runs=_CODEC_RUNS, limit_s=_CODEC_LIMIT_S
        )
        return num_frames, median(durations)


class _ConcatenatedTalker:
    """Steps whose keys and values grow; each run's outputs are the next one's inputs."""

    def __init__(self, session: ort.InferenceSession, past: int) -> None:
        embeddings, positions, mask, *cache = session.get_inputs()
        self._session = session
        self._position = past
        self._mask_name, self._positions_name = mask.name, positions.name
        self._embeddings_name = embeddings.name
        self._embeddings = ort.OrtValue.ortvalue_from_numpy(
            np.full((1, 1, embeddings.shape[2]), 0.01, _NUMPY_TYPES[embeddings.type])
        )
        self._num_axes = positions.shape[0]
        self._outputs = [value.name for value in session.get_outputs()]
        self._cache_names = [value.name for value in cache]
        self._cache = [
            ort.OrtValue.ortvalue_from_numpy(
                np.zeros((1, value.shape[1], past, value.shape[3]), _NUMPY_TYPES[value.type])
            )
            for value in cache
        ]

    def step(self) -> None:
        """Append one position."""
        positions = np.full((self._num_axes, 1, 1), self._position, np.int64)
        mask = np.ones((1, self._position + 1), np.int64)
        feeds = dict(zip(self._cache_names, self._cache, strict=True))
        feeds[self._embeddings_name] = self._embeddings
        feeds[self._positions_name] = ort.OrtValue.ortvalue_from_numpy(positions)
        feeds[self._mask_name] = ort.OrtValue.ortvalue_from_numpy(mask)
        _, _, *self._cache = self._session.run_with_ort_values(self._outputs, feeds)
        self._position += 1


class _TeacherForcedPredictor:
    """A frame is one run for each group but the first."""

    def __init__(self, session: ort.InferenceSession) -> None:
        hidden, codes = session.get_inputs()
        self._session = session
        self._hidden_name, self._codes_name = hidden.name, codes.name
        self._hidden = np.full((1, hidden.shape[1]), 0.01, _NUMPY_TYPES[hidden.type])
        self._num_groups = codes.shape[1]

    def predict(self) -> None:
        """Make the codes of one frame."""
        codes = np.zeros((1, self._num_groups), np.int64)
        for group in range(1, self._num_groups):
            feeds = {self._hidden_name: self._hidden, self._codes_name: codes}
            (scores,) = self._session.run(None, feeds)
            codes[0, group] = np.argmax(scores[0, group - 1])


def _elapsed_ms(work: Any) -> float:
    started_s = time.perf_counter()
    work()
    return (time.perf_counter() - started_s) * MS_PER_S
