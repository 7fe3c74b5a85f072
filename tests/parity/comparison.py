"""Compare subjects with what the official package gave, and write the result as tables."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity import cases
from tests.parity.cases import Case
from tests.parity.subject import Subject, Utterance
from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer

# Float32 noise through some hundred convolutions; a wrong tap or state is a thousand times this.
MAX_AUDIO_ERROR = 5e-5
MAX_X_VECTOR_ERROR = 1e-5

SubjectFactory = Callable[[str], Subject]
"""Checkpoint name -> the subject with that checkpoint."""


@dataclass(frozen=True)
class OfficialRun:
    """What ``official.py`` wrote."""

    results: dict[str, Any]
    arrays: dict[str, Any]

    @classmethod
    def read(cls, directory: Path) -> "OfficialRun":
        """Read both files."""
        results = json.loads((directory / "official.json").read_text(encoding="utf-8"))
        with np.load(directory / "official.npz") as archive:
            return cls(results, dict(archive))

    def cases(self) -> list[tuple[Case, Utterance]]:
        """Return every case with the official codes and samples."""
        names = [field.name for field in fields(Case)]
        return [
            (
                Case(**{name: entry[name] for name in names}),
                Utterance(as_codes(entry["codes"]), self.arrays[f"audio_{index}"]),
            )
            for index, entry in enumerate(self.results["cases"])
        ]


@dataclass
class Score:
    """Agreement over the cases of one table row."""

    num_cases: int = 0
    num_frames: int = 0
    num_identical: int = 0
    num_not_offered: int = 0
    audio_error: float = 0.0
    """Largest difference of a sample, over the cases with identical codes."""

    def add(self, expected: Utterance, given: Utterance | None) -> None:
        """Count one case."""
        if given is None:
            self.num_not_offered += 1
            return
        self.num_cases += 1
        self.num_frames += len(expected.codes)
        if np.array_equal(expected.codes, given.codes):
            self.num_identical += 1
            # The official cut of an ICL reference can be a sample early: compare the ends.
            official = expected.samples[-len(given.samples) :]
            self.audio_error = max(self.audio_error, largest_error(official, given.samples))

    @property
    def is_perfect(self) -> bool:
        """Whether all codes are equal and audio differs by float noise only."""
        return self.num_identical == self.num_cases and self.audio_error <= MAX_AUDIO_ERROR


def as_codes(nested: Sequence[Sequence[int]]) -> Int64Array:
    """Turn JSON's lists into codes (F, G)."""
    return np.array(nested, np.int64).reshape(-1, cases.NUM_CODE_GROUPS)


def largest_error(expected: Float32Array, given: Float32Array) -> float:
    """Return the largest absolute difference; infinite if the shapes differ."""
    if expected.shape != given.shape:
        return float("inf")
    return float(np.abs(expected.astype(np.float64) - given).max(initial=0.0))


def compare_speech(run: OfficialRun, subject_of: SubjectFactory) -> dict[str, Score]:
    """Speak every case; return a score per "checkpoint | voice | layout"."""
    scores: dict[str, Score] = {}
    by_checkpoint: dict[str, list[tuple[Case, Utterance]]] = {}
    for case, expected in run.cases():
        by_checkpoint.setdefault(case.checkpoint, []).append((case, expected))
    for checkpoint, entries in by_checkpoint.items():
        given = subject_of(checkpoint).speak([case for case, _ in entries])
        for (case, expected), utterance in zip(entries, given, strict=True):
            row = f"{checkpoint} | {case.voice} | {case.layout}"
            scores.setdefault(row, Score()).add(expected, utterance)
    return scores


def compare_parts(run: OfficialRun, subject_of: SubjectFactory) -> dict[str, tuple[str, bool]]:
    """Measure codec and encoders; return, per part, the measurement and whether it is good."""
    measured: dict[str, tuple[str, bool]] = {}
    names = dict.fromkeys(case.checkpoint for case in cases.all_cases())
    base = [name for name in names if name.endswith("-base")]
    codec = subject_of(base[0])
    codes, expected = cases.decoder_codes(), run.arrays["decoder_samples"]
    for chunk_frames in (cases.DECODER_FRAMES, *cases.DECODER_CHUNKS):
        error = largest_error(expected, codec.decode(codes, chunk_frames))
        name = f"codec decoder, {len(codes)} frames in chunks of {chunk_frames}"
        measured[name] = f"max error {error:.1e}", error <= MAX_AUDIO_ERROR
    wrong = sum(
        not np.array_equal(as_codes(official), codec.encode(cases.clip(int(num_samples))))
        for num_samples, official in run.results["encoder_codes"].items()
    )
    lengths = len(run.results["encoder_codes"])
    measured[f"codec encoder, {lengths} lengths"] = f"{wrong} with other codes", wrong == 0
    for name in base:
        errors = [
            largest_error(
                run.arrays[f"x_vector_{name}_{num_samples}"],
                subject_of(name).embed(cases.clip(num_samples)),
            )
            for num_samples in cases.SPEAKER_SAMPLES
        ]
        part = f"speaker encoder {name}, {len(errors)} lengths"
        measured[part] = f"max error {max(errors):.1e}", max(errors) <= MAX_X_VECTOR_ERROR
    return measured


def compare_tokens(run: OfficialRun, checkpoint: Path) -> tuple[str, bool]:
    """Tokenise the official texts."""
    tokenizer = BpeTokenizer(checkpoint)
    entries = run.results["tokens"]
    wrong = sum(tokenizer.encode_template(entry["text"]) != entry["ids"] for entry in entries)
    return f"{wrong} of {len(entries)} texts with other ids", wrong == 0


def speech_table(scores: dict[str, dict[str, Score]]) -> str:
    """Return a markdown table; ``scores`` is subject -> row -> score."""
    names = list(scores)
    lines = [
        "| checkpoint | voice | layout | " + " | ".join(names) + " |",
        "| --- " * (3 + len(names)) + "|",
    ]
    rows = list(dict.fromkeys(row for of_subject in scores.values() for row in of_subject))
    lines.extend(
        f"| {row} | " + " | ".join(_cell(scores[name][row]) for name in names) + " |"
        for row in rows
    )
    totals = [_cell(_total(scores[name].values())) for name in names]
    return "\n".join([*lines, "| all | | | " + " | ".join(totals) + " |"])


def parts_table(measured: dict[str, dict[str, tuple[str, bool]]]) -> str:
    """Return a markdown table; ``measured`` is subject -> part -> measurement."""
    names = list(measured)
    lines = ["| part | " + " | ".join(names) + " |", "| --- " * (1 + len(names)) + "|"]
    parts = list(dict.fromkeys(part for of_subject in measured.values() for part in of_subject))
    lines.extend(
        f"| {part} | " + " | ".join(measured[name][part][0] for name in names) + " |"
        for part in parts
    )
    return "\n".join(lines)


def _cell(score: Score) -> str:
    text = f"{score.num_identical} / {score.num_cases} identical ({score.num_frames} frames)"
    if score.num_not_offered:
        text += f", {score.num_not_offered} not offered"
    return f"{text}, audio {score.audio_error:.1e}"


def _total(scores: Iterable[Score]) -> Score:
    total = Score()
    for score in scores:
        total.num_cases += score.num_cases
        total.num_frames += score.num_frames
        total.num_identical += score.num_identical
        total.num_not_offered += score.num_not_offered
        total.audio_error = max(total.audio_error, score.audio_error)
    return total
