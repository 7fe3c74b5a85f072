"""What an implementation shows to be compared."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tests.parity.cases import Case
from wyoming_qwen3tts.arrays import Float32Array, Int64Array


class Utterance(NamedTuple):
    """What one case gives."""

    codes: Int64Array
    """(F, G)."""
    samples: Float32Array
    """(S,)."""


class Subject(Protocol):
    """One implementation with one checkpoint."""

    def speak(self, batch: Sequence[Case]) -> list[Utterance | None]:
        """Speak cases; None where the implementation does not offer what a case asks for."""

    def decode(self, codes: Int64Array, chunk_frames: int) -> Float32Array:
        """Decode codes (F, G) in chunks into samples (S,)."""

    def encode(self, samples: Float32Array) -> Int64Array:
        """Encode samples (S,) into codes (F, G); Base checkpoints only."""

    def embed(self, samples: Float32Array) -> Float32Array:
        """Return the x-vector (D,) of samples (S,); Base checkpoints only."""
