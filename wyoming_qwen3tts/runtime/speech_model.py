"""One opened model and the protocols of its parts, which each bundle layout implements once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.manifest import ModelFacts
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer


class TalkerOutput(NamedTuple):
    """Result of one talker pass, at the last position of each lane."""

    logits: Float32Array  # (B, C + 1): scores of the C codes of group 0, then of end of speech
    hidden: Float32Array  # (B, D): after the norm, the code predictor's input


class Talker(Protocol):
    """The language model over frames: yields group 0 and a hidden vector."""

    def new_cache(self, num_lanes: int, capacity: int) -> KVCache:
        """Make an empty cache for ``num_lanes`` lanes of ``capacity`` positions each."""

    def prefill(self, embeddings: Float32Array, cache: KVCache, lane: int) -> TalkerOutput:
        """Append ``embeddings`` (T, D) to one lane; the output has B = 1."""

    def step(
        self, embeddings: Float32Array, cache: KVCache, active_mask: Sequence[bool]
    ) -> TalkerOutput:
        """Append one position (B, D) to lanes 0 .. B-1; inactive lanes keep their length."""


class PredictorSampling(NamedTuple):
    """Sampling controls of the code predictor, one entry per lane."""

    uniforms: Float32Array
    """(B, G - 1) in [0, 1): one number per code; 0 takes the most probable code (greedy)."""
    temperature: Float32Array
    top_k: Int64Array  # 0 keeps every code
    top_p: Float32Array


class CodePredictor(Protocol):
    """The small language model inside a frame: yields groups 1 .. G-1."""

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        """Return codes (B, G - 1) from hidden (B, D) and group 0 (B,); -1 if scores overflowed."""


CodecState: TypeAlias = Any
"""What a decoder carries between calls; never changed in place, so a kept reference is a fork."""


class CodecDecoder(Protocol):
    """Codes to audio, exactly ``samples_per_frame`` samples a frame, without look-ahead."""

    @property
    def chunk_ramp(self) -> tuple[int, ...]:
        """Frames of the first calls that suit this decoder; the last size stays."""

    def initial_state(self) -> CodecState:
        """Return the state before the first frame."""

    def decode(self, codes: Int64Array, state: CodecState) -> tuple[Float32Array, CodecState]:
        """Decode codes (F, G), F >= 1, into samples (S,) in [-1, 1] and the next state."""

    def advance(self, codes: Int64Array, state: CodecState) -> CodecState:
        """Return the state after codes (F, G), F >= 1, without their samples."""


class Embeddings(Protocol):
    """The tables that turn ids into talker inputs."""

    def text(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): projected text embeddings."""

    def codec(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): rows of the talker's codec table (codes, special ids, speakers)."""

    def frames(self, codes: Int64Array) -> Float32Array:
        """Return (F, D): the sum over groups of the embeddings of codes (F, G)."""


@dataclass(frozen=True)
class SpeechModel:
    """One opened model."""

    name: str
    facts: ModelFacts
    tokenizer: BpeTokenizer
    embeddings: Embeddings
    talker: Talker
    code_predictor: CodePredictor
    codec_decoder: CodecDecoder
    codec_encoder: Callable[[Float32Array], Int64Array] | None
    """Mono samples (S,) at the model's rate -> codes (F, G), F = ceil(S / 1920); Base only."""
    speaker_encoder: Callable[[Float32Array], Float32Array] | None
    """Mono samples (S,) at the model's rate -> x-vector (D,); Base only."""
    clip_state: Callable[[Int64Array], dict[str, AnyArray]] | None = None
    """Codes (F, G) of a clip -> the decoder's state after them; None where that is no work."""
    load_state: Callable[[Mapping[str, AnyArray]], CodecState] | None = None
    encoder_id: str = ""
