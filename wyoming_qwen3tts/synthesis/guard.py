"""Guards one utterance against known failures of the models.

About three in a thousand requests never end their speech and go on with room tone; short texts run
on; some begin with a long silence. The guard bounds the length by the text, detects runaway speech,
and trims silence at both ends. Samples in between stay as they are.
"""

from collections import deque

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import SynthesisError

# Room tone of the models lies well below this level; breath and quiet consonants lie above.
SILENCE_RMS = 10 ** (-55 / 20)
_WINDOW_S = 0.01
# Silence kept before the first sound, so that a soft consonant is not cut, and after the last.
LEADING_S = 0.1
TRAILING_S = 0.25
# No speech follows after this silence; pauses in speech are shorter.
RUNAWAY_SILENCE_S = 3.0
# Frames (4 s) of the same codes of group 0, repeated in cycles of at most 8, are not speech.
RUNAWAY_REPEATS = 50
_LONGEST_CYCLE = 8

# Even shouting reaches full scale with few samples; broken numbers stay there.
_FULL_SCALE = 0.999
_MOST_AT_FULL_SCALE = 0.5
_REMEDY = "rebuild the bundle, or use a higher precision such as fp32."

# Seconds per character of a very slow speaker, at least twice those of calm speech; capitals may be
# spelled. Every text gets the base on top.
BASE_SECONDS = 4.0
_LETTER_S = 0.22
_CAPITAL_S = 0.6
_CJK_S = 0.7
_DIGIT_S = 1.2
_OTHER_S = 0.1
# From here on characters are syllables or words: kana, ideographs, hangul.
_FIRST_CJK = 0x2E80


def frame_budget(text: str, frame_rate_hz: float) -> int:
    """Return an upper bound on the frames of ``text``, generous enough for very slow speech."""
    return round((BASE_SECONDS + sum(map(_max_seconds, text))) * frame_rate_hz)


def _max_seconds(character: str) -> float:
    if character.isdigit():
        return _DIGIT_S
    if not character.isalpha():
        return _OTHER_S
    if ord(character) >= _FIRST_CJK:
        return _CJK_S
    return _CAPITAL_S if character.isupper() else _LETTER_S


class RunawayGuard:
    """Watches the frames and samples of one utterance and decides what the listener hears."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._window = round(_WINDOW_S * sample_rate_hz)
        self._held: list[Float32Array] = []
        self._num_held = 0
        self._recent: deque[int] = deque(maxlen=_LONGEST_CYCLE)
        # Length of the run of frames that equal the frame 1, 2, 3 ... before them.
        self._runs = [0] * _LONGEST_CYCLE
        self.audio_emitted = False  # before any sound the utterance can start again

    def record_code(self, code: int) -> None:
        """Record the next code of group 0."""
        for index, earlier in enumerate(reversed(self._recent)):
            self._runs[index] = self._runs[index] + 1 if code == earlier else 0
        self._recent.append(code)

    @property
    def is_runaway(self) -> bool:
        """Whether the utterance consists only of silence or of repeated sounds lately."""
        silence_s = self._num_held / self._rate_hz
        num_repeated = max(run and run + cycle for cycle, run in enumerate(self._runs, start=1))
        return silence_s >= RUNAWAY_SILENCE_S or num_repeated >= RUNAWAY_REPEATS

    def push(self, samples: Float32Array) -> Float32Array:
        """Take samples (S,) of the codec and return those that the listener hears now.

        Silence is held back until sound follows. At the beginning most of it is then dropped; later
        all of it is passed on.

        Raises:
            SynthesisError: The samples are not finite, or noise at full scale.
        """
        if not np.isfinite(samples).all():
            raise SynthesisError(f"The codec's samples are not finite numbers; {_REMEDY}")
        if np.mean(np.abs(samples) >= _FULL_SCALE) > _MOST_AT_FULL_SCALE:
            raise SynthesisError(f"The codec's samples are all at full scale; {_REMEDY}")
        windows = np.pad(samples, (0, -len(samples) % self._window)).reshape(-1, self._window)
        rms = np.sqrt(np.mean(np.square(windows, dtype=np.float64), axis=1))
        (loud,) = np.nonzero(rms > SILENCE_RMS)
        # A codec may click at its start: one loud window with silence after it; speech goes on.
        is_click = not self.audio_emitted and len(loud) == 1 and loud[0] < len(windows) - 1
        if not len(loud) or is_click:
            self._hold(samples)
            return np.zeros(0, np.float32)
        start = int(loud[0]) * self._window
        end = min((int(loud[-1]) + 1) * self._window, len(samples))
        before = np.concatenate([*self._held, samples[:start]])
        if not self.audio_emitted:
            before = before[max(0, len(before) - round(LEADING_S * self._rate_hz)) :]
        self._held, self._num_held = [], 0
        self.audio_emitted = True
        self._hold(samples[end:])
        return np.concatenate([before, samples[start:end]])

    def finish(self) -> Float32Array:
        """Return the silence (S,) that is kept after the last sound."""
        held = np.concatenate([*self._held, np.zeros(0, np.float32)])
        return held[: round(TRAILING_S * self._rate_hz)]

    def _hold(self, samples: Float32Array) -> None:
        self._held.append(samples)
        self._num_held += len(samples)
