"""Runs a part of the bundle on what the reference was run on, and measures the difference."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.builder.verify.inputs import (
    CLIP_SECONDS,
    TEXTS,
    permuted_codes,
    seeded_clip,
)
from wyoming_qwen3tts.builder.verify.parity import ArrayParity, ScoreParity
from wyoming_qwen3tts.builder.verify.parts import ForcedCodePredictor
from wyoming_qwen3tts.builder.verify.report import ComponentReport
from wyoming_qwen3tts.builder.verify.utterances import Speaker, Utterance
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.speech_model import (
    CodecDecoder,
    CodecEncoder,
    Embeddings,
    SpeakerEncoder,
    Talker,
    TextTokenizer,
)
from wyoming_qwen3tts.synthesis.codec_stream import CodecStream
from wyoming_qwen3tts.synthesis.prefix_cache import PrefixCache

_CHUNK_ROWS = 2048
_PREDICTOR_LANES = 8


@dataclass(frozen=True, eq=False)
class ReferenceSpeech:
    """What the float32 model spoke."""

    utterances: Sequence[Utterance]
    group_logits: Sequence[Float32Array]
    """(F, G - 1, C) of each utterance."""

    @property
    def frames(self) -> Int64Array:
        """(F, G): the frames of all utterances."""
        return np.concatenate([utterance.frames for utterance in self.utterances])


def compare_tokenizers(
    expected: TextTokenizer, given: TextTokenizer, entry: ComponentReport
) -> None:
    """Tokenise every text with both."""
    equal = [expected.encode(text) == given.encode(text) for text in TEXTS]
    template = "<|im_start|>user\n<|im_end|>\n"
    equal.append(expected.encode_template(template) == given.encode_template(template))
    entry.figures["equal_texts"] = sum(equal) / len(equal)


def compare_embeddings(
    expected: Embeddings,
    given: Embeddings,
    facts: ModelFacts,
    num_rows: tuple[int, int],
    entry: ComponentReport,
) -> None:
    """Compare every row of every table.

    Args:
        expected: Those of the reference.
        given: Those of the bundle.
        facts: What the model is.
        num_rows: Rows of the text table and of the talker's codec table.
        entry: Gets the figures.
    """
    total, lowest, lowest_where = ArrayParity(), 1.0, ""
    num_text, num_codec = num_rows
    frames = permuted_codes(facts)
    for table, count in (("text", num_text), ("codec", num_codec), ("frames", len(frames))):
        for start in range(0, count, _CHUNK_ROWS):
            ids = range(start, min(start + _CHUNK_ROWS, count))
            wanted, got = (
                embeddings.text(ids)
                if table == "text"
                else embeddings.codec(ids)
                if table == "codec"
                else embeddings.frames(frames[start : ids.stop])
                for embeddings in (expected, given)
            )
            total.add(wanted, got)
            cosines = _row_cosines(wanted, got)
            if cosines.min() < lowest:
                lowest = float(cosines.min())
                lowest_where = f"{table} row {start + int(cosines.argmin())}"
    entry.figures |= {**total.figures(), "lowest_row_cosine": lowest}
    if lowest_where:
        entry.notes.append(f"the lowest cosine is that of {lowest_where}")


def compare_talker(talker: Talker, utterances: Sequence[Utterance], entry: ComponentReport) -> None:
    """Feed the talker what the reference was fed, and compare its scores and hidden vectors."""
    scores, hidden = ScoreParity(), ArrayParity()
    for utterance in utterances:
        cache = talker.new_cache(1, 1)
        # In the same pieces as when the reference spoke: a run's last bits depend on its length.
        outputs = [PrefixCache().prefill(talker, utterance.prompt, cache, 0)]
        outputs += [talker.step(row[None], cache, [True]) for row in utterance.step_inputs]
        scores.add(utterance.logits, np.concatenate([output.logits for output in outputs]))
        hidden.add(utterance.hidden, np.concatenate([output.hidden for output in outputs]))
    entry.figures |= {**scores.figures(), **hidden.figures("hidden_")}


def teacher_forced(predictor: ForcedCodePredictor, utterance: Utterance) -> Float32Array:
    """Return a code predictor's scores (F, G - 1, C) along the frames of an utterance."""
    frames = utterance.frames
    hidden = utterance.hidden[: len(frames)]
    return np.concatenate(
        [
            predictor.teacher_forced_logits(
                hidden[start : start + _PREDICTOR_LANES],
                np.ascontiguousarray(frames[start : start + _PREDICTOR_LANES, 0]),
                np.ascontiguousarray(frames[start : start + _PREDICTOR_LANES, 1:]),
            )
            for start in range(0, len(frames), _PREDICTOR_LANES)
        ]
    )


def compare_code_predictor(
    predictor: ForcedCodePredictor, speech: ReferenceSpeech, entry: ComponentReport
) -> None:
    """Give the code predictor the reference's frames, and compare its scores group by group."""
    num_groups = speech.group_logits[0].shape[1]
    total, groups = ScoreParity(), [ScoreParity() for _ in range(num_groups)]
    for utterance, wanted in zip(speech.utterances, speech.group_logits, strict=True):
        got = teacher_forced(predictor, utterance)
        for group, parity in enumerate(groups):
            parity.add(wanted[:, group], got[:, group])
            total.add(wanted[:, group], got[:, group])
    entry.figures |= total.figures()
    entry.figures["agreement_by_group"] = [parity.agreement for parity in groups]


def compare_free_running(
    speaker: Speaker, utterances: Sequence[Utterance], entry: ComponentReport
) -> None:
    """Let the bundle speak for itself, and compare its frames with the reference's.

    Raises:
        SynthesisError: The bundle's scores are no numbers.
    """
    until_difference, num_equal, num_codes, num_wanted, num_got = [], 0, 0, 0, 0
    for utterance in utterances:
        wanted, got = utterance.frames, speaker.speak(utterance.task).frames
        shared = min(len(wanted), len(got))
        is_equal = wanted[:shared] == got[:shared]
        differing = np.flatnonzero(~is_equal.all(1))
        until_difference.append(float(differing[0] if len(differing) else shared))
        num_equal += int(is_equal.sum())
        num_codes += max(len(wanted), len(got)) * wanted.shape[1]
        num_wanted += len(wanted)
        num_got += len(got)
    entry.figures |= {
        "frames": num_wanted,
        "frames_until_difference": until_difference,
        "equal_codes": num_equal / max(num_codes, 1),
        "length_ratio": num_got / max(num_wanted, 1),
    }


def decode_whole(decoder: CodecDecoder, codes: Int64Array) -> Float32Array:
    """Decode codes (F, G) in one call."""
    return decoder.decode(codes, decoder.initial_state())[0]


def decode_streamed(decoder: CodecDecoder, codes: Int64Array) -> Float32Array:
    """Decode codes (F, G) in the calls that the server makes."""
    stream = CodecStream(decoder, decoder.initial_state())
    pieces = []
    for frame in codes:
        stream.push(frame)
        if stream.is_ready:
            pieces.append(stream.decode())
    return np.concatenate([*pieces, stream.decode()])


def compare_codec_decoder(
    decoder: CodecDecoder, codes: Int64Array, wanted: Float32Array, entry: ComponentReport
) -> None:
    """Decode codes (F, G) as the server does, and compare the samples (S,) with the reference's."""
    parity = ArrayParity()
    parity.add(wanted, decode_streamed(decoder, codes))
    entry.figures |= {"frames": len(codes), **parity.figures()}


def encode_clips(encoder: CodecEncoder, facts: ModelFacts) -> list[Int64Array]:
    """Return codes (F, G) of every seeded clip."""
    return [encoder.encode(seeded_clip(length, facts.sample_rate_hz)) for length in CLIP_SECONDS]


def compare_codec_encoder(
    encoder: CodecEncoder, facts: ModelFacts, wanted: Sequence[Int64Array], entry: ComponentReport
) -> None:
    """Encode every seeded clip.

    Raises:
        ValueError: A clip makes another number of frames.
    """
    num_equal = num_codes = 0
    for codes, got in zip(wanted, encode_clips(encoder, facts), strict=True):
        if codes.shape != got.shape:
            raise ValueError(f"makes codes {got.shape} of a clip, where {codes.shape} are right")
        num_equal += int((codes == got).sum())
        num_codes += codes.size
    entry.figures |= {"codes": num_codes, "equal_codes": num_equal / num_codes}


def embed_clips(encoder: SpeakerEncoder, facts: ModelFacts) -> list[Float32Array]:
    """Return the x-vectors (D,) of every seeded clip."""
    return [encoder.embed(seeded_clip(length, facts.sample_rate_hz)) for length in CLIP_SECONDS]


def compare_speaker_encoder(
    encoder: SpeakerEncoder,
    facts: ModelFacts,
    wanted: Sequence[Float32Array],
    entry: ComponentReport,
) -> None:
    """Embed every seeded clip; the cosine is that of the clip which is furthest off.

    Raises:
        ValueError: An x-vector has another width.
    """
    total, lowest = ArrayParity(), 1.0
    for x_vector, got in zip(wanted, embed_clips(encoder, facts), strict=True):
        parity = ArrayParity()
        parity.add(x_vector.reshape(-1), got.reshape(-1))
        lowest = min(lowest, parity.cosine)
        total.merge(parity)
    entry.figures |= {**total.figures(), "cosine": lowest}


def _row_cosines(wanted: Float32Array, got: Float32Array) -> Float32Array:
    """Return (n,) cosines of rows (n, D); two rows of zeros are equal."""
    got = np.nan_to_num(got)
    products = np.einsum("nd,nd->n", wanted, got, dtype=np.float64)
    squares = np.einsum("nd,nd->n", wanted, wanted, dtype=np.float64) * np.einsum(
        "nd,nd->n", got, got, dtype=np.float64
    )
    is_zero = squares == 0
    both_zero = is_zero & ~wanted.any(1) & ~got.any(1)
    cosines = np.where(is_zero, both_zero, products / np.sqrt(np.where(is_zero, 1, squares)))
    return np.asarray(cosines, np.float32)
