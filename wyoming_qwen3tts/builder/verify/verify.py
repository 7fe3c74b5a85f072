"""The order of work: the bundle by itself, then part by part against its checkpoint in float32."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.verify import comparison
from wyoming_qwen3tts.builder.verify.census import coarsest, read_census
from wyoming_qwen3tts.builder.verify.comparison import ReferenceSpeech
from wyoming_qwen3tts.builder.verify.inputs import random_codes, voices_for
from wyoming_qwen3tts.builder.verify.limits import limits_for
from wyoming_qwen3tts.builder.verify.parts import OwnParts, Parts
from wyoming_qwen3tts.builder.verify.published import check_published_structure
from wyoming_qwen3tts.builder.verify.reference import Reference, reference_for
from wyoming_qwen3tts.builder.verify.report import ComponentReport, VerifyReport
from wyoming_qwen3tts.builder.verify.structure import Tell, check_own_structure
from wyoming_qwen3tts.builder.verify.utterances import Speaker, speak_frames
from wyoming_qwen3tts.builder.verify.weights import compare_weights
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.onnx_community import is_published_bundle
from wyoming_qwen3tts.runtime.speech_model import Embeddings
from wyoming_qwen3tts.runtime.tokenizer import load_tokenizer
from wyoming_qwen3tts.synthesis.request import Voice

_LOGGER = logging.getLogger(__name__)

DEFAULT_FRAMES = 48
# Frames of random codes that the codec decodes beside those that were spoken.
_RANDOM_FRAMES = 24


@dataclass(frozen=True)
class VerifyOptions:
    """How a bundle is verified."""

    num_threads: int
    num_frames: int = DEFAULT_FRAMES
    """Frames that the float32 model speaks, for the others to be compared with."""


def verify_bundle(
    directory: Path,
    checkpoint_dir: Path | None,
    options: VerifyOptions,
    tell: Tell = lambda _stage: None,
) -> VerifyReport:
    """Verify a bundle of either layout.

    Args:
        directory: The bundle.
        checkpoint_dir: The checkpoint to compare with; None checks the bundle by itself.
        options: How.
        tell: Told what is being done.

    Raises:
        CheckpointError: The checkpoint cannot be used.
        BuildError: There is too little space for temporary files.
    """
    started_s = time.perf_counter()
    is_published = is_published_bundle(directory)
    report = VerifyReport(directory, layout="published" if is_published else "own")
    report.checkpoint = checkpoint_dir
    parts: Parts | None
    if is_published:
        parts = check_published_structure(
            directory, checkpoint_dir, report, options.num_threads, tell
        )
    else:
        parts = check_own_structure(directory, report, options.num_threads, tell)
    if checkpoint_dir is not None and parts is not None:
        checkpoint = Checkpoint.open(checkpoint_dir)
        differing = differing_facts(parts.facts, checkpoint.facts)
        if differing:
            report.component("manifest").problems.append(
                f"it is no bundle of this checkpoint: {', '.join(differing)}"
            )
        else:
            with reference_for(checkpoint, report.device, options.num_threads, tell) as reference:
                _Comparison(report, parts, reference, options.num_frames, tell).run()
    report.seconds = time.perf_counter() - started_s
    return report


def differing_facts(given: ModelFacts, wanted: ModelFacts) -> list[str]:
    """Return the facts that two models do not share, but for the positions they can hold."""
    given = replace(given, max_positions=wanted.max_positions)
    return [
        f"{field.name} is {getattr(given, field.name)!r}, not {getattr(wanted, field.name)!r}"
        for field in fields(ModelFacts)
        if getattr(given, field.name) != getattr(wanted, field.name)
    ]


class _Comparison:
    """One comparison of a bundle with its checkpoint."""

    def __init__(
        self,
        report: VerifyReport,
        parts: Parts,
        reference: Reference,
        num_frames: int,
        tell: Tell,
    ) -> None:
        self._report = report
        self._parts = parts
        self._reference = reference
        self._checkpoint = reference.checkpoint
        self._num_frames = num_frames
        self._tell = tell

    def run(self) -> None:
        """Compare every component, one or two of them in memory at a time."""
        with self._measuring("tokenizer") as entry:
            comparison.compare_tokenizers(
                load_tokenizer(self._checkpoint.directory), self._parts.tokenizer(), entry
            )
        with self._reference.components("embeddings") as tables:
            embeddings = tables.embeddings()
            self._compare_embeddings(embeddings)
            voices = self._compare_encoders()
            speech = self._compare_language(embeddings, voices)
        self._compare_codec_decoder(speech.frames)

    @contextmanager
    def _measuring(self, name: str) -> Iterator[ComponentReport]:
        """Give a component's report; whatever goes wrong inside is a problem of the component."""
        self._tell(f"comparing {name}")
        entry = self._report.component(name)
        try:
            yield entry
        except Exception as error:  # what a broken graph raises is the verdict on it
            _LOGGER.debug("Comparing %s", name, exc_info=error)
            entry.problems.append(f"cannot be compared: {error or type(error).__name__}")
        if any(figure.endswith("not_finite") for figure in entry.figures):
            entry.problems.append("gives values that are not finite numbers")
        entry.limits = limits_for(name, entry.precision, self._report.layout)

    def _compare_embeddings(self, wanted: Embeddings) -> None:
        config = self._checkpoint.talker
        rows = config.text_vocab_size, config.vocab_size
        with self._measuring("embeddings") as entry:
            comparison.compare_embeddings(
                wanted, self._parts.embeddings(), self._checkpoint.facts, rows, entry
            )

    def _compare_encoders(self) -> list[Voice]:
        """Compare the encoders of a Base model; return the voices that the reference speaks."""
        facts = self._checkpoint.facts
        if facts.model_type != "base":
            return voices_for(facts, None, None)
        codes = self._compare_codec_encoder(facts)
        x_vectors = self._compare_speaker_encoder(facts)
        return voices_for(facts, x_vectors[-1], codes[-1])

    def _compare_codec_encoder(self, facts: ModelFacts) -> list[Int64Array]:
        with self._reference.components("codec_encoder") as reference:
            codes = comparison.encode_clips(reference.codec_encoder(), facts)
            with self._measuring("codec_encoder") as entry:
                comparison.compare_codec_encoder(self._parts.codec_encoder(), facts, codes, entry)
        return codes

    def _compare_speaker_encoder(self, facts: ModelFacts) -> list[Float32Array]:
        with self._reference.components("speaker_encoder") as reference:
            x_vectors = comparison.embed_clips(reference.speaker_encoder(), facts)
            with self._measuring("speaker_encoder") as entry:
                comparison.compare_speaker_encoder(
                    self._parts.speaker_encoder(), facts, x_vectors, entry
                )
        return x_vectors

    def _compare_language(self, embeddings: Embeddings, voices: Sequence[Voice]) -> ReferenceSpeech:
        with self._reference.components("talker", "code_predictor") as reference:
            for name in ("talker", "code_predictor"):
                with self._measuring(name):
                    self._compare_weights(reference, name)
            speech = self._speak_reference(reference, embeddings, voices)
        self._report.num_frames = len(speech.frames)
        with self._measuring("talker") as entry:
            comparison.compare_talker(self._parts.talker(), speech.utterances, entry)
        with self._measuring("code_predictor") as entry:
            comparison.compare_code_predictor(self._parts.code_predictor(), speech, entry)
        with self._measuring("free_running") as entry:
            entry.precision = self._coarsest("talker", "code_predictor", "embeddings")
            comparison.compare_free_running(self._speaker(), speech.utterances, entry)
        return speech

    def _speak_reference(
        self, reference: OwnParts, embeddings: Embeddings, voices: Sequence[Voice]
    ) -> ReferenceSpeech:
        """Let the float32 model speak.

        Raises:
            BuildError: It gives nothing to compare with.
        """
        self._tell("speaking with the float32 model")
        predictor = reference.code_predictor()
        tokenizer = load_tokenizer(self._checkpoint.directory)
        speaker = Speaker(reference, tokenizer, embeddings, reference.talker(), predictor)
        utterances = [
            utterance
            for utterance in speak_frames(speaker, voices, self._num_frames)
            if len(utterance.frames)
        ]
        if not utterances:
            raise BuildError("The checkpoint speaks no frame; there is nothing to compare.")
        logits = [comparison.teacher_forced(predictor, utterance) for utterance in utterances]
        return ReferenceSpeech(utterances, logits)

    def _speaker(self) -> Speaker:
        parts = self._parts
        return Speaker(
            parts, parts.tokenizer(), parts.embeddings(), parts.talker(), parts.code_predictor()
        )

    def _compare_codec_decoder(self, spoken: Int64Array) -> None:
        codes = np.concatenate([spoken, random_codes(_RANDOM_FRAMES, self._checkpoint.facts)])
        with self._reference.components("codec_decoder") as reference:
            samples = comparison.decode_whole(reference.codec_decoder(), codes)
            with self._measuring("codec_decoder") as entry:
                comparison.compare_codec_decoder(self._parts.codec_decoder(), codes, samples, entry)

    def _compare_weights(self, reference: OwnParts, component: str) -> None:
        """Compare the stored weights of the language side, which every version names alike."""
        entry = self._report.component(component)
        if self._report.layout == "own" and entry.graphs:
            expected = read_census(reference.directory / f"{component}.onnx")
            compare_weights(expected, entry.graphs[0], entry)

    def _coarsest(self, *names: str) -> str | None:
        found = {self._report.component(name).precision for name in names}
        return coarsest({precision for precision in found if precision is not None})
