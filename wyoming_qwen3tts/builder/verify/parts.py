"""The parts of a model one by one, whatever layout they come from.

A server opens a whole bundle; here a part is opened, compared and let go, so that two models of
which one is in float32 are never in memory together, and a broken part does not hide the others.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.runtime.code_predictor import OnnxCodePredictor
from wyoming_qwen3tts.runtime.codec import OnnxCodecDecoder, OnnxCodecEncoder
from wyoming_qwen3tts.runtime.embeddings import TableEmbeddings
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.onnx_community import open_published_bundle
from wyoming_qwen3tts.runtime.onnx_community.code_predictor import PublishedCodePredictor
from wyoming_qwen3tts.runtime.session import open_session
from wyoming_qwen3tts.runtime.speaker_encoder import OnnxSpeakerEncoder
from wyoming_qwen3tts.runtime.speech_model import (
    CodecDecoder,
    CodecEncoder,
    CodePredictor,
    Embeddings,
    PredictorSampling,
    SpeakerEncoder,
    SpeechModel,
    Talker,
    TextTokenizer,
)
from wyoming_qwen3tts.runtime.talker import OnnxTalker
from wyoming_qwen3tts.runtime.tokenizer import load_tokenizer

_Part = TypeVar("_Part")


class ForcedCodePredictor(CodePredictor, Protocol):
    """A code predictor that also tells its scores when the codes before them are given."""

    def teacher_forced_logits(
        self, hidden: Float32Array, code0: Int64Array, codes: Int64Array
    ) -> Float32Array:
        """Return scores (B, G - 1, C) along the given codes (B, G - 1)."""


class Parts(Protocol):
    """The parts of one model; each method opens its part anew, or raises a BundleError."""

    @property
    def facts(self) -> ModelFacts:
        """What the model is."""

    def tokenizer(self) -> TextTokenizer:
        """Read the tokenizer."""

    def embeddings(self) -> Embeddings:
        """Open the embeddings."""

    def talker(self) -> Talker:
        """Open the talker."""

    def code_predictor(self) -> ForcedCodePredictor:
        """Open the code predictor."""

    def codec_decoder(self) -> CodecDecoder:
        """Open the codec decoder."""

    def codec_encoder(self) -> CodecEncoder:
        """Open the codec encoder."""

    def speaker_encoder(self) -> SpeakerEncoder:
        """Open the speaker encoder."""


@dataclass(frozen=True)
class OwnParts:
    """Parts of a bundle of our own layout, or of single components in a directory."""

    directory: Path
    facts: ModelFacts
    max_positions: int
    """Positions that the talker's graph can hold."""
    num_threads: int

    def tokenizer(self) -> TextTokenizer:
        """Read the tokenizer."""
        return load_tokenizer(self.directory)

    def embeddings(self) -> TableEmbeddings:
        """Open the tables."""
        return TableEmbeddings(self.directory)

    def talker(self) -> OnnxTalker:
        """Open the talker."""
        return OnnxTalker(*self._open("talker"), max_positions=self.max_positions)

    def code_predictor(self) -> OnnxCodePredictor:
        """Open the code predictor."""
        return OnnxCodePredictor(
            *self._open("code_predictor"),
            num_code_groups=self.facts.num_code_groups,
            codebook_size=self.facts.codebook_size,
        )

    def codec_decoder(self) -> OnnxCodecDecoder:
        """Open the codec decoder."""
        return OnnxCodecDecoder(*self._open("codec_decoder"))

    def codec_encoder(self) -> OnnxCodecEncoder:
        """Open the codec encoder."""
        return OnnxCodecEncoder(*self._open("codec_encoder"))

    def speaker_encoder(self) -> OnnxSpeakerEncoder:
        """Open the speaker encoder."""
        return OnnxSpeakerEncoder(*self._open("speaker_encoder"))

    def _open(self, component: str) -> tuple[Any, Path]:
        """Open a graph; return its session and its path, for messages."""
        path = self.directory / f"{component}.onnx"
        return open_session(path, num_threads=self.num_threads), path


@dataclass(frozen=True)
class PublishedParts:
    """Parts of a bundle of the published layout, which is opened as a whole when first needed."""

    directory: Path
    facts: ModelFacts
    checkpoint_directory: Path
    """Where the checkpoint's own files are."""
    num_threads: int

    @cached_property
    def _model(self) -> SpeechModel:
        return open_published_bundle(
            self.directory,
            num_threads=self.num_threads,
            checkpoint_dir=self.checkpoint_directory,
        )

    def tokenizer(self) -> TextTokenizer:
        """Read the tokenizer."""
        return load_tokenizer(self.checkpoint_directory)

    def embeddings(self) -> Embeddings:
        """Return the embeddings."""
        return self._model.embeddings

    def talker(self) -> Talker:
        """Return the talker."""
        return self._model.talker

    def code_predictor(self) -> ForcedCodePredictor:
        """Return the code predictor."""
        predictor = self._model.code_predictor
        if not isinstance(predictor, PublishedCodePredictor):
            raise BundleError(f"{self.directory} has no code predictor of the published layout.")
        return _ForcedPublishedPredictor(predictor)

    def codec_decoder(self) -> CodecDecoder:
        """Return the codec decoder."""
        return self._model.codec_decoder

    def codec_encoder(self) -> CodecEncoder:
        """Return the codec encoder."""
        return _present(self._model.codec_encoder, self.directory, "tok_encoder")

    def speaker_encoder(self) -> SpeakerEncoder:
        """Return the speaker encoder."""
        return _present(self._model.speaker_encoder, self.directory, "speaker_encoder")


class _ForcedPublishedPredictor:
    """The published code predictor, whose graph is teacher-forced anyway."""

    def __init__(self, predictor: PublishedCodePredictor) -> None:
        self._predictor = predictor

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        return self._predictor.predict(hidden, code0, sampling)

    def teacher_forced_logits(
        self, hidden: Float32Array, code0: Int64Array, codes: Int64Array
    ) -> Float32Array:
        return self._predictor.group_logits(hidden, np.concatenate([code0[:, None], codes], axis=1))


def _present(part: _Part | None, directory: Path, graph: str) -> _Part:
    if part is None:
        raise BundleError(f"{directory} has no {graph}, which a Base model needs.")
    return part
