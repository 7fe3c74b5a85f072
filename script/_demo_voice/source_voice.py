"""The voice that the demo voice learns from: flite's rms, in this process.

CMU's voice "rms" is statistical (clustergen): the same text is always spoken the same way, at a
very regular pace, which is what makes it so easy to learn. Installed by Debian's ``flite``.
"""

import ctypes
from typing import Final

import numpy as np
import soxr

from wyoming_qwen3tts.arrays import Float32Array

SAMPLE_RATE_HZ: Final = 24000
_LOUD: Final = 0.01
_MIN_SAMPLES: Final = 2400
"""Shorter is no speech."""


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Voice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class SourceVoice:
    """Speaks English texts; deterministic."""

    def __init__(self, name: str, stretch: float) -> None:
        """Load the voice.

        Args:
            name: As flite calls it, such as "rms".
            stretch: Factor on the length of every sound.

        Raises:
            OSError: flite is not installed; ``apt-get install flite``.
        """
        self._flite = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
        for library in ("libflite_usenglish.so.1", "libflite_cmulex.so.1"):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        sounds = ctypes.CDLL(f"libflite_cmu_us_{name}.so.1")
        self._flite.flite_init()
        register = sounds[f"register_cmu_us_{name}"]
        register.restype = ctypes.POINTER(_Voice)
        register.argtypes = [ctypes.c_char_p]
        self._voice = register(None)
        set_float = self._flite.feat_set_float
        set_float.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float]
        set_float(self._voice.contents.features, b"duration_stretch", stretch)
        self._speak = self._flite.flite_text_to_wave
        self._speak.restype = ctypes.POINTER(_Wave)
        self._speak.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Voice)]
        self._delete = self._flite.delete_wave
        self._delete.argtypes = [ctypes.POINTER(_Wave)]

    def speak(self, text: str) -> Float32Array:
        """Return the speech (S,) at 24 kHz, without the silence around it.

        Raises:
            ValueError: The text made no sound.
        """
        wave = self._speak(text.encode("utf-8"), self._voice)
        try:
            content = wave.contents
            samples = np.ctypeslib.as_array(content.samples, (content.num_samples,))
            speech = samples.astype(np.float32) / 32768.0
            rate_hz = content.sample_rate
        finally:
            self._delete(wave)
        (loud,) = np.nonzero(np.abs(speech) > _LOUD)
        if not len(loud):
            raise ValueError(f"{text!r} makes no sound")
        # 10 ms before the first sound, 50 ms behind the last.
        start, end = max(0, loud[0] - rate_hz // 100), loud[-1] + rate_hz // 20
        resampled: Float32Array = soxr.resample(speech[start:end], rate_hz, SAMPLE_RATE_HZ, "HQ")
        if len(resampled) < _MIN_SAMPLES:
            raise ValueError(f"{text!r} makes next to no sound")
        return resampled
