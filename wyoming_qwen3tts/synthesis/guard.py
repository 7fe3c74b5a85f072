"""Guards one utterance of a server against what the models are known to do now and then.

About three in a thousand requests never draw end of speech and go on with room tone; short texts
run on; some begin with a long silence. The guard bounds the length by the text, notices when
nothing is said any more, and cuts silence at both ends. What lies between is never touched.
"""

from collections import deque

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import SynthesisError

# Room tone of the models lies well below this level, breath and quiet consonants above.
SILENCE_RMS = 10 ** (-55 / 20)
_WINDOW_S = 0.01
LEADING_S = 0.1
"""Silence that is left before the first sound, so that a soft consonant is not cut."""
TRAILING_S = 0.25
"""Silence that is left behind the last sound."""
ENDLESS_SILENCE_S = 3.0
"""After so much silence nothing more will come; pauses in speech are shorter."""
ENDLESS_REPEATS = 50
"""The same codes of group 0 over and over in so many frames (4 s) are no speech."""
_LONGEST_CYCLE = 8
"""Frames that such a repetition may take before it begins anew (0.64 s)."""

# Even shouting reaches full scale with few samples; broken numbers stay there.
_FULL_SCALE = 0.999
_MOST_AT_FULL_SCALE = 0.5
_REMEDY = "rebuild the bundle, or use a higher precision such as fp32."

# Seconds that a very slow speaker takes for a letter, and for a character of a script without
# letters, twice what calm speech needs or more; and what every text may take besides.
_LETTER_S = 0.22
_CJK_S = 0.7
_OTHER_S = 0.1
_DIGIT_S = 1.2
_FREE_S = 4.0
# From here on characters are syllables or words: kana, ideographs, hangul.
_FIRST_CJK = 0x2E80


def frame_budget(text: str, frame_rate_hz: float) -> int:
    """Return the number of frames that even slow, sad speech of ``text`` does not need."""
    seconds = _FREE_S + sum(map(_slow_s, text))
    return round(seconds * frame_rate_hz)


def _slow_s(character: str) -> float:
    if character.isdigit():
        return _DIGIT_S
    if not character.isalpha():
        return _OTHER_S
    return _CJK_S if ord(character) >= _FIRST_CJK else _LETTER_S


class SpeechGuard:
    """Watches the frames and samples of one utterance and decides what may be heard."""

    def __init__(self, sample_rate_hz: int) -> None:
        """Guard an utterance that begins now."""
        self._rate_hz = sample_rate_hz
        self._window = round(_WINDOW_S * sample_rate_hz)
        self._held: list[Float32Array] = []
        self._num_held = 0
        self._recent: deque[int] = deque(maxlen=_LONGEST_CYCLE)
        # How many frames in a row had the code of the frame 1, 2, 3 ... before them.
        self._runs = [0] * _LONGEST_CYCLE
        self.has_spoken = False
        """Whether anything audible was let through; before that the utterance can start anew."""

    def note_code(self, code: int) -> None:
        """Note the next code of group 0."""
        for index, earlier in enumerate(reversed(self._recent)):
            self._runs[index] = self._runs[index] + 1 if code == earlier else 0
        self._recent.append(code)

    @property
    def is_endless(self) -> bool:
        """Whether the utterance has lost itself in silence, or in one sound or a few."""
        silence_s = self._num_held / self._rate_hz
        num_repeated = max(run and run + cycle for cycle, run in enumerate(self._runs, start=1))
        return silence_s >= ENDLESS_SILENCE_S or num_repeated >= ENDLESS_REPEATS

    def push(self, samples: Float32Array) -> Float32Array:
        """Take samples (S,) of the codec and return those that may be heard now.

        Silence is held back until sound follows: at the beginning most of it is dropped then, in
        between all of it is let through.

        Raises:
            SynthesisError: The samples are not finite numbers, or noise at full scale.
        """
        if not np.isfinite(samples).all():
            raise SynthesisError(f"The codec's samples are not finite numbers; {_REMEDY}")
        if np.mean(np.abs(samples) >= _FULL_SCALE) > _MOST_AT_FULL_SCALE:
            raise SynthesisError(f"The codec's samples are all at full scale; {_REMEDY}")
        loud = self._loud_windows(samples)
        if not len(loud) or self._is_click(loud, len(samples)):
            self._hold(samples)
            return np.zeros(0, np.float32)
        start = int(loud[0]) * self._window
        end = min((int(loud[-1]) + 1) * self._window, len(samples))
        before = np.concatenate([*self._held, samples[:start]])
        if not self.has_spoken:
            before = before[max(0, len(before) - round(LEADING_S * self._rate_hz)) :]
        self._held, self._num_held = [], 0
        self.has_spoken = True
        self._hold(samples[end:])
        return np.concatenate([before, samples[start:end]])

    def finish(self) -> Float32Array:
        """Return the silence (S,) that stays behind the last sound."""
        held = np.concatenate([*self._held, np.zeros(0, np.float32)])
        self._held, self._num_held = [], 0
        return held[: round(TRAILING_S * self._rate_hz)]

    def _hold(self, samples: Float32Array) -> None:
        self._held.append(samples)
        self._num_held += len(samples)

    def _is_click(self, loud: np.ndarray, num_samples: int) -> bool:
        """Whether nothing but one window before any speech is loud, with silence behind it.

        A codec that starts from nothing may click; what begins to speak goes on.
        """
        is_last = (int(loud[0]) + 1) * self._window >= num_samples
        return not self.has_spoken and len(loud) == 1 and not is_last

    def _loud_windows(self, samples: Float32Array) -> np.ndarray:
        """Return the indices of the windows of 10 ms that are no silence."""
        padded = np.pad(samples, (0, -len(samples) % self._window))
        windows = padded.reshape(-1, self._window)
        rms = np.sqrt(np.mean(np.square(windows, dtype=np.float64), axis=1))
        (loud,) = np.nonzero(rms > SILENCE_RMS)
        return loud
