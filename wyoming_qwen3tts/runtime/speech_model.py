"""What the synthesis code needs of a model, whatever bundle layout it comes from.

Each bundle layout (our own, the published onnx-community one) implements these protocols once;
nothing above this package asks which layout it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.kv_cache import KVCache


class TalkerOutput(NamedTuple):
    """Result of one talker pass, at the last position of each lane."""

    logits: Float32Array
    """(B, C + 1): scores of the C codes of group 0, then of end of speech."""
    hidden: Float32Array
    """(B, D): post-norm hidden vector, the code predictor's input."""


class Talker(Protocol):
    """The language model over frames: yields group 0 and a hidden vector."""

    def new_cache(self, num_lanes: int, capacity: int) -> KVCache:
        """Make an empty cache for ``num_lanes`` lanes of ``capacity`` positions each."""

    def prefill(self, embeddings: Float32Array, cache: KVCache, lane: int) -> TalkerOutput:
        """Append ``embeddings`` (T, D) to one lane; the output has B = 1."""

    def step(
        self, embeddings: Float32Array, cache: KVCache, advance: Sequence[bool]
    ) -> TalkerOutput:
        """Append one position (B, D) to lanes 0 .. B-1.

        A lane whose ``advance`` is False takes part (it costs nothing) but stays at its length;
        its output has no meaning.
        """


class PredictorSampling(NamedTuple):
    """Sampling controls of the code predictor, one entry per lane."""

    uniforms: Float32Array
    """(B, G - 1) in [0, 1): one draw per code; 0 takes the most probable code (greedy)."""
    temperature: Float32Array
    """(B,), above 0."""
    top_k: Int64Array
    """(B,), 0 keeps every code."""
    top_p: Float32Array
    """(B,), in (0, 1]; 1 keeps every code."""


class CodePredictor(Protocol):
    """The small language model inside a frame: yields groups 1 .. G-1."""

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        """Return codes (B, G - 1) from hidden (B, D) and group 0's codes (B,)."""


class CodecState(Protocol):
    """What a codec decoder carries from one call to the next; never changed in place."""


class CodecDecoder(Protocol):
    """Codes to audio, exactly ``samples_per_frame`` samples a frame, without look-ahead."""

    @property
    def chunk_ramp(self) -> tuple[int, ...]:
        """Frames of the first calls that suit this decoder, short ones first; the last stays."""

    def initial_state(self) -> Any:
        """Return the state before the first frame."""

    def decode(self, codes: Int64Array, state: Any) -> tuple[Float32Array, Any]:
        """Decode codes (F, G), F >= 1, into samples (S,) in [-1, 1] and the next state."""

    def advance(self, codes: Int64Array, state: Any) -> Any:
        """Return the state after codes (F, G), F >= 1, whose samples nobody wants."""


class CodecEncoder(Protocol):
    """Audio to codes (Base models only)."""

    def encode(self, samples: Float32Array) -> Int64Array:
        """Return codes (F, G) of mono samples (S,) at the model's rate; F = ceil(S / 1920)."""


class SpeakerEncoder(Protocol):
    """Audio to an x-vector (Base models only)."""

    def embed(self, samples: Float32Array) -> Float32Array:
        """Return the x-vector (D,) of mono samples (S,) at the model's sample rate."""


class Embeddings(Protocol):
    """The tables that turn ids into talker inputs."""

    def text(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): projected text embeddings."""

    def codec(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): rows of the talker's codec table (codes, special ids, speakers)."""

    def frames(self, codes: Int64Array) -> Float32Array:
        """Return (F, D): the sum over groups of the embeddings of codes (F, G)."""


class TextTokenizer(Protocol):
    """Text to token ids."""

    def encode(self, text: str) -> list[int]:
        """Encode user text; special tokens in it are read as plain text."""

    def encode_template(self, text: str) -> list[int]:
        """Encode text of ours in which special tokens have their meaning."""


@dataclass(frozen=True)
class SpeechModel:
    """One opened model."""

    name: str
    facts: ModelFacts
    tokenizer: TextTokenizer
    embeddings: Embeddings
    talker: Talker
    code_predictor: CodePredictor
    codec_decoder: CodecDecoder
    codec_encoder: CodecEncoder | None
    speaker_encoder: SpeakerEncoder | None
