"""The command ``wyoming-qwen3tts verify``: check a bundle's files, and compare what it speaks.

With a checkpoint, verify builds a float32 bundle of it in a temporary directory. Both models speak
the same texts greedily, through the synthesizer that the server uses.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.quantize import snr_db
from wyoming_qwen3tts.builder.recipe import PRECISIONS, uniform_recipe
from wyoming_qwen3tts.builder.trial import EncodedClip, encode_clip, speak, trial_requests
from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.models.references import find_bundle
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME, ModelFacts
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, SpeechModel
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder
from wyoming_qwen3tts.synthesis.request import SynthesisRequest

DEFAULT_FRAMES: Final = 48

# The server decodes up to this many frames in one call.
_FRAMES_PER_DECODE: Final = 4

# Check -> precision of its weights -> the lowest value of its metric. The limits separate
# quantisation from damaged or mixed-up files; they do not say how good a bundle sounds.
_LOWEST: Final[dict[str, dict[str, float]]] = {
    "talker": {"fp32": 1.0, "int8": 0.8, "int4": 0.3},
    # Low: within a frame each code depends on the ones before, so one difference makes others.
    "code_predictor": {"fp32": 1.0, "int8": 0.1, "int4": 0.02},
    "speech": {"fp32": 1.0},
    "lanes": {"fp32": 1.0},
    "codec_decoder": {"fp32": 80.0, "int8": 25.0},
    "codec_encoder": {"fp32": 1.0},
    "speaker_encoder": {"fp32": 60.0},
}
# The onnx-community codec graphs see windows of 25 frames or one second, not the whole past.
_LOWEST_ONNX_COMMUNITY: Final = {"codec_decoder": 8.0, "codec_encoder": 0.1}


@dataclass
class Check:
    """One thing that was checked."""

    name: str
    precision: str = ""
    metric: str = ""
    """What ``value`` means, with its unit."""
    value: float | None = None
    lowest: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        """Whether there is no problem and the value reaches its limit."""
        is_low = self.lowest is not None and not (self.value or 0.0) >= self.lowest
        return not self.problems and not is_low


@dataclass
class VerifyReport:
    """What verifying found."""

    bundle: str
    name: str
    recipe: str
    checkpoint: str | None
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        """Whether every check has passed."""
        return all(check.has_passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        values = {**asdict(self), "verdict": _verdict(self.has_passed)}
        for check, entry in zip(self.checks, values["checks"], strict=True):
            entry["verdict"] = _verdict(check.has_passed)
        return values

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        yield f"{self.bundle}: {self.name}, {self.recipe}"
        for check in self.checks:
            value = "" if check.value is None else f"{check.metric} {check.value:.6g}"
            if check.lowest is not None:
                value += f" (at least {check.lowest:g})"
            line = f"  {_verdict(check.has_passed)}  {check.name:16} {check.precision:5} {value}"
            yield line.rstrip()
            yield from (f"        {problem}" for problem in check.problems)
        yield from (f"  note: {note}" for note in self.notes)
        if self.checkpoint is None:
            yield "Not compared with a checkpoint; --checkpoint DIR does that."
        yield _verdict(self.has_passed)


def verify_bundle(
    bundle: InstalledBundle,
    checkpoint_dir: Path | None = None,
    *,
    num_threads: int = 1,
    num_frames: int = DEFAULT_FRAMES,
    on_stage: Callable[[str], None] = lambda _stage: None,
) -> VerifyReport:
    """Verify a bundle.

    Args:
        bundle: The bundle, of either layout.
        checkpoint_dir: The checkpoint to compare with; None checks the bundle alone.
        num_threads: Threads for synthesis.
        num_frames: Frames of speech to compare.
        on_stage: Called with the name of each stage.

    Raises:
        CheckpointError: The checkpoint cannot be used.
        BuildError: There is too little space for temporary files.
    """
    manifest = bundle.manifest
    source = None if checkpoint_dir is None else str(checkpoint_dir)
    report = VerifyReport(str(bundle.directory), manifest.name, manifest.recipe, source)
    if not bundle.is_published:
        report.checks.append(_check_files(bundle, report.notes, on_stage))
    reference: _Performance | None = None
    if checkpoint_dir is not None:
        differing = _differing_facts(manifest.facts, Checkpoint.open(checkpoint_dir).facts)
        if differing:
            problem = f"it is not a bundle of this checkpoint: {', '.join(differing)}"
            report.checks.append(Check("checkpoint", problems=[problem]))
            return report
        # The reference is closed before the bundle opens: both would need twice the memory.
        with tempfile.TemporaryDirectory(prefix="qwen3-tts-verify-") as scratch:
            twin = build_bundle(
                checkpoint_dir,
                Path(scratch) / "fp32",
                BuildOptions(recipe=uniform_recipe("fp32")),
                lambda stage, _fraction: on_stage(f"building {stage} in float32"),
            )
            on_stage("speaking with the float32 model")
            reference = _perform(open_bundle(twin, num_threads), num_frames)
    on_stage("speaking with the bundle")
    try:
        given = _perform(open_bundle(bundle.directory, num_threads), num_frames, reference)
    except Exception as error:  # noqa: BLE001 - what a broken graph raises is the verdict on it
        report.checks.append(Check("speech", problems=[str(error) or type(error).__name__]))
    else:
        report.checks += _compare(bundle, reference, given)
    return report


@dataclass(frozen=True, eq=False)
class _Performance:
    """What one model speaks, predicts, decodes and encodes."""

    clip: EncodedClip
    requests: list[SynthesisRequest]
    frames: list[Int64Array]
    """(F, G) of every text, spoken one after another."""
    lane_frames: list[Int64Array]
    """The same, spoken side by side."""
    predicted: Int64Array
    """(F, G): the best codes along the reference's frames."""
    samples: Float32Array
    """(S,): the reference's frames, decoded as a stream."""


def _perform(
    model: SpeechModel, num_frames: int, reference: _Performance | None = None
) -> _Performance:
    """Run a model, along the voices and frames of the reference if there is one.

    Raises:
        SynthesisError: The model gives numbers that are not finite.
    """
    clip = encode_clip(model)
    requests = (
        reference.requests if reference else trial_requests(model, clip, num_frames, greedy=True)
    )
    spoken = speak(model, requests)
    followed = reference.frames if reference else spoken
    prompts = PromptBuilder(model)
    predicted = [_follow(model, prompts, *pair) for pair in zip(requests, followed, strict=True)]
    return _Performance(
        clip=clip,
        requests=requests,
        frames=spoken,
        lane_frames=speak(model, requests, len(requests)),
        predicted=np.concatenate(predicted),
        samples=_decode(model, np.concatenate(followed)),
    )


def _follow(
    model: SpeechModel, prompts: PromptBuilder, request: SynthesisRequest, frames: Int64Array
) -> Int64Array:
    """Feed the model given frames (F, G); return its best codes (F, G) in place of each."""
    prompt = prompts.build(request.text, request.voice, request.options)
    cache = model.talker.new_cache(1, len(prompt.embeddings) + len(frames))
    # In two runs, as the server prefills: the last bits of a run depend on its length.
    if prompt.prefix_length:
        model.talker.prefill(prompt.embeddings[: prompt.prefix_length], cache, 0)
    output = model.talker.prefill(prompt.embeddings[prompt.prefix_length :], cache, 0)
    greedy = PredictorSampling(
        uniforms=np.zeros((1, frames.shape[1] - 1), np.float32),
        temperature=np.ones(1, np.float32),
        top_k=np.zeros(1, np.int64),
        top_p=np.ones(1, np.float32),
    )
    best = []
    for index, frame in enumerate(frames):
        groups = model.code_predictor.predict(output.hidden, frame[:1], greedy)
        best.append([int(output.logits[0].argmax()), *groups[0]])
        text = prompt.trailing[index] if index < len(prompt.trailing) else prompt.text_pad
        embedding = model.embeddings.frames(frame[None]) + text
        output = model.talker.step(embedding, cache, [True])
    return np.array(best, np.int64).reshape(-1, frames.shape[1])


def _decode(model: SpeechModel, codes: Int64Array) -> Float32Array:
    """Decode codes (F, G) in the calls of a stream."""
    state, pieces = model.codec_decoder.initial_state(), []
    for start in range(0, len(codes), _FRAMES_PER_DECODE):
        chunk = codes[start : start + _FRAMES_PER_DECODE]
        samples, state = model.codec_decoder.decode(chunk, state)
        pieces.append(samples)
    return np.concatenate(pieces)


def _compare(
    bundle: InstalledBundle, reference: _Performance | None, given: _Performance
) -> Iterator[Check]:
    """Yield a check for each thing that the models did."""

    def check(name: str, metric: str, value: float, *components: str) -> Check:
        stored = [bundle.manifest.precision.get(component, {}) for component in components]
        found = {precision for parts in stored for precision in parts.values()}
        found = found or {bundle.manifest.recipe}  # the onnx-community layout states no parts
        precision = max(found & set(PRECISIONS), key=PRECISIONS.index, default="fp32")
        lowest = _LOWEST[name].get(precision)
        if bundle.is_published:
            lowest = _LOWEST_ONNX_COMMUNITY.get(name, lowest)
        return Check(name, precision, metric, value, lowest)

    language = ("talker", "code_predictor", "embeddings")
    lanes = _equal_share(given.frames, given.lane_frames)
    yield check("lanes", "equal codes", lanes, *language)
    if reference is None:
        return
    is_equal = reference.predicted == given.predicted
    yield check("talker", "agreement", float(is_equal[:, 0].mean()), *language)
    yield check("code_predictor", "equal codes", float(is_equal[:, 1:].mean()), *language)
    speech = _equal_share(reference.frames, given.frames)
    yield check("speech", "equal codes", speech, *language)
    snr = _snr_db(reference.samples, given.samples)
    yield check("codec_decoder", "SNR dB", snr, "codec_decoder")
    wanted, got = reference.clip, given.clip
    if wanted.codes is not None and got.codes is not None:
        equal = _equal_share([wanted.codes], [got.codes])
        yield check("codec_encoder", "equal codes", equal, "codec_encoder")
    if wanted.x_vector is not None and got.x_vector is not None:
        snr = _snr_db(wanted.x_vector, got.x_vector)
        yield check("speaker_encoder", "SNR dB", snr, "speaker_encoder")


def _check_files(
    bundle: InstalledBundle, notes: list[str], on_stage: Callable[[str], None]
) -> Check:
    """Compare every size and hash with the manifest."""
    check = Check("files", metric="files as stated", value=0)
    for file in bundle.manifest.files:
        path = bundle.directory / file.path
        on_stage(f"hashing {file.path}")
        try:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            check.problems.append(f"{file.path} cannot be read ({error.strerror})")
            continue
        if digest == file.sha256:
            check.value = (check.value or 0) + 1
        else:
            check.problems.append(
                f"{file.path} has {path.stat().st_size} bytes and the SHA-256 {digest}, "
                f"the manifest states {file.bytes} and {file.sha256}"
            )
    stated = {file.path for file in bundle.manifest.files} | {MANIFEST_NAME}
    others = sorted(p.name for p in bundle.directory.iterdir() if p.name not in stated)
    if others:
        notes.append(f"not in the manifest: {', '.join(others)}")
    return check


def _differing_facts(given: ModelFacts, wanted: ModelFacts) -> list[str]:
    """Name the facts that two models do not share; the builder may lower the positions."""
    pairs = asdict(replace(given, max_positions=wanted.max_positions)), asdict(wanted)
    return [
        f"{key} is {value!r}, not {pairs[1][key]!r}"
        for key, value in pairs[0].items()
        if value != pairs[1][key]
    ]


def _equal_share(wanted: Sequence[Int64Array], given: Sequence[Int64Array]) -> float:
    """Return the share of equal codes; missing and surplus frames count as different."""
    equal = total = 0
    for left, right in zip(wanted, given, strict=True):
        shared = min(len(left), len(right))
        equal += int((left[:shared] == right[:shared]).sum())
        total += max(left.size, right.size)
    return equal / max(total, 1)


def _snr_db(wanted: AnyArray, given: AnyArray) -> float:
    if wanted.shape != given.shape or not np.isfinite(given).all():
        return 0.0
    error = given.astype(np.float64) - wanted
    return snr_db(float(np.square(wanted, dtype=np.float64).sum()), float(np.square(error).sum()))


def _verdict(has_passed: bool) -> str:
    return "PASS" if has_passed else "FAIL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "bundle",
        metavar="BUNDLE",
        help="a bundle's directory, or an installed model such as MODEL or MODEL/VARIANT",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="compare with this checkpoint in float32; without it verify checks the files and that "
        "the bundle speaks",
    )
    add_flags(parser, "data_dirs", "threads")
    parser.add_argument(
        "--frames",
        type=int,
        default=DEFAULT_FRAMES,
        metavar="N",
        help="frames of speech to compare (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace, config: Config) -> int:
    """Verify and print the report; return 0 for PASS and 1 for FAIL.

    Raises:
        ConfigError: There is no such bundle.
        CheckpointError: The checkpoint cannot be used.
    """
    bundle = find_bundle(args.bundle, config.data_paths)
    report = verify_bundle(
        bundle,
        args.checkpoint,
        num_threads=config.num_threads,
        num_frames=args.frames,
        on_stage=_show_stage,
    )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if args.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 0 if report.has_passed else 1


def _show_stage(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{stage} ...", end="", file=sys.stderr, flush=True)
