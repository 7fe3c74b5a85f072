"""The demo voice learns from flite's rms: in this process, and in step with its letters.

CMU's voice "rms" is statistical (clustergen): the same text is always spoken the same way, which
makes it easy to learn. Here every word is stretched, or pressed together, so that it takes as many
frames as it has letters. The talker reads one letter a frame, so what it says is then always the
same few letters behind what it reads, and it need not find out where in the text it is.
Debian's package ``flite`` brings the voice.
"""

import ctypes
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import soxr

from wyoming_qwen3tts.arrays import Float32Array

SAMPLE_RATE_HZ: Final = 24000
LETTER_S: Final = 0.08
"""A frame."""
_LEAST_STRETCH: Final = 0.62
_MOST_STRETCH: Final = 1.9
_MIN_SAMPLES: Final = 2400
"""Shorter is no speech."""
_TOKEN_OF_SEGMENT: Final = b"R:SylStructure.parent.parent.R:Token.parent"

# flite leaves these letters out.
_UNSPOKEN: Final = re.compile(r"\bAM\b|\ba\.m\.(?=\W|$)")

Pointer = ctypes.c_void_p


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


@dataclass
class _Span:
    """When a word is spoken, in seconds."""

    start_s: float
    end_s: float
    pause_s: float = 0.0
    """Silence behind it."""


_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "new_utterance": (Pointer, []),
    "utt_set_input_text": (ctypes.c_int, [Pointer, ctypes.c_char_p]),
    "utt_init": (Pointer, [Pointer, Pointer]),
    "default_tokenization": (Pointer, [Pointer]),
    "utt_synth_tokens": (Pointer, [Pointer]),
    "utt_wave": (ctypes.POINTER(_Wave), [Pointer]),
    "utt_relation": (Pointer, [Pointer, ctypes.c_char_p]),
    "relation_head": (Pointer, [Pointer]),
    "item_next": (Pointer, [Pointer]),
    "item_feat_float": (ctypes.c_float, [Pointer, ctypes.c_char_p]),
    "item_set_float": (None, [Pointer, ctypes.c_char_p, ctypes.c_float]),
    "path_to_item": (Pointer, [Pointer, ctypes.c_char_p]),
    "delete_utterance": (None, [Pointer]),
}


class SourceVoice:
    """Speaks English texts; deterministic."""

    def __init__(self, name: str) -> None:
        """Load the voice.

        Args:
            name: As flite calls it, such as "rms".

        Raises:
            OSError: flite is not installed; ``apt-get install flite``.
        """
        self._flite = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
        for library in ("libflite_usenglish.so.1", "libflite_cmulex.so.1"):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        sounds = ctypes.CDLL(f"libflite_cmu_us_{name}.so.1")
        self._flite.flite_init()
        register = sounds[f"register_cmu_us_{name}"]
        register.restype, register.argtypes = Pointer, [ctypes.c_char_p]
        self._voice = register(None)
        for function, (result, arguments) in _SIGNATURES.items():
            found = getattr(self._flite, function)
            found.restype, found.argtypes = result, arguments

    def speak(self, text: str) -> Float32Array:
        """Return the speech (S,) at 24 kHz; letter n is spoken about n frames after its beginning.

        Raises:
            ValueError: flite reads other words than are there, or makes no sound of them.
        """
        said = _UNSPOKEN.sub("ay-em", text)
        _, _, spans = self._utter(said, [])
        samples, rate_hz, spoken = self._utter(said, _stretches(text.split(" "), spans))
        start_s = max(0.0, spoken[0].start_s)
        end_s = spoken[-1].end_s + LETTER_S / 2
        speech = samples[round(start_s * rate_hz) : round(end_s * rate_hz)]
        if len(speech) < _MIN_SAMPLES:
            raise ValueError(f"{text!r} makes next to no sound")
        resampled: Float32Array = soxr.resample(speech, rate_hz, SAMPLE_RATE_HZ, "HQ")
        return resampled

    def _utter(self, text: str, stretches: list[float]) -> tuple[Float32Array, int, list[_Span]]:
        """Speak a text, each word by its stretch; returns samples (S,), their rate, and when."""
        call = self._flite
        utterance = call.new_utterance()
        try:
            call.utt_set_input_text(utterance, text.encode("utf-8"))
            call.utt_init(utterance, self._voice)
            call.default_tokenization(utterance)
            tokens = self._items(utterance, b"Token")
            if len(tokens) != len(text.split(" ")):
                raise ValueError(f"flite reads {len(tokens)} words in {text!r}")
            for token, stretch in zip(tokens, stretches, strict=False):
                call.item_set_float(token, b"local_duration_stretch", stretch)
            call.utt_synth_tokens(utterance)
            wave = call.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,))
            speech = samples.astype(np.float32) / np.float32(32768)
            return speech, wave.sample_rate, self._spans(utterance, tokens, text)
        finally:
            call.delete_utterance(utterance)

    def _spans(self, utterance: Pointer, tokens: list[Pointer], text: str) -> list[_Span]:
        numbers = {token: number for number, token in enumerate(tokens)}
        spans: dict[int, _Span] = {}
        last, before_s = -1, 0.0
        for segment in self._items(utterance, b"Segment"):
            end_s = self._flite.item_feat_float(segment, b"end")
            token = self._flite.path_to_item(segment, _TOKEN_OF_SEGMENT)
            if token in numbers:
                last = numbers[token]
                spans.setdefault(last, _Span(before_s, end_s)).end_s = end_s
            elif last >= 0:
                spans[last].pause_s += end_s - before_s
            before_s = end_s
        if sorted(spans) != [*range(len(tokens))]:
            raise ValueError(f"flite leaves out a word of {text!r}")
        return [spans[number] for number in range(len(tokens))]

    def _items(self, utterance: Pointer, relation: bytes) -> list[Pointer]:
        item = self._flite.relation_head(self._flite.utt_relation(utterance, relation))
        items = []
        while item:
            items.append(item)
            item = self._flite.item_next(item)
        return items


def _stretches(words: list[str], spans: list[_Span]) -> list[float]:
    """Return the stretch of each word, so that the next one begins when its first letter is due."""
    now_s, letters, stretches = 0.0, 0, []
    for word, span in zip(words, spans, strict=True):
        letters += len(word) + 1
        natural_s = span.end_s - span.start_s
        wanted_s = letters * LETTER_S - now_s - span.pause_s
        stretch = min(_MOST_STRETCH, max(_LEAST_STRETCH, wanted_s / natural_s))
        now_s += stretch * natural_s + span.pause_s
        stretches.append(stretch)
    return stretches
