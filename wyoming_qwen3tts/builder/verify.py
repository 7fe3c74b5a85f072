"""The command ``verify``: check a bundle's files, and compare its speech with float32."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle, sha256_of
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.recipe import PRECISIONS, uniform_recipe
from wyoming_qwen3tts.builder.trial import EncodedClip, encode_clip, speak, trial_requests
from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.models.references import find_bundle
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import ModelFacts
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, SpeechModel
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder
from wyoming_qwen3tts.synthesis.request import SynthesisRequest

_VERDICT: Final = ("FAIL", "PASS")
_NUM_FRAMES: Final = 48
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


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    problem: str = ""
    precision: str = ""
    metric: str = ""
    value: float = 0.0
    lowest: float | None = None

    @property
    def has_passed(self) -> bool:
        """Whether there is no problem and the value reaches its limit."""
        return not self.problem and (self.lowest is None or self.value >= self.lowest)

    def __str__(self) -> str:
        found = self.problem or (self.metric and f"{self.metric} {self.value:.6g}")
        if self.lowest is not None:
            found += f" (at least {self.lowest:g})"
        return f"  {_VERDICT[self.has_passed]}  {self.name:16} {self.precision:5} {found}".rstrip()


def verify_bundle(
    bundle: InstalledBundle, checkpoint_dir: Path | None = None, num_threads: int = 1
) -> list[Check]:
    """Check a bundle of either layout, and compare it with its checkpoint if that is given."""
    # The onnx-community layout states no hashes.
    checks = [] if bundle.is_published else [_check_files(bundle)]
    reference: _Performance | None = None
    if checkpoint_dir is not None:
        facts = Checkpoint.open(checkpoint_dir).facts
        if differing := _differing_facts(bundle.manifest.facts, facts):
            return [*checks, Check("checkpoint", f"it is of another model: {differing}")]
        # The reference is closed before the bundle opens: both would need twice the memory.
        with tempfile.TemporaryDirectory(prefix="qwen3-tts-verify-") as scratch:
            _tell(f"building {checkpoint_dir} in float32")
            options = BuildOptions(uniform_recipe("fp32"))
            twin = build_bundle(checkpoint_dir, Path(scratch) / "fp32", options)
            _tell("speaking with the float32 model")
            reference = _perform(open_bundle(twin, num_threads))
    _tell("speaking with the bundle")
    try:
        given = _perform(open_bundle(bundle.directory, num_threads), reference)
    except Exception as error:  # noqa: BLE001 - what a broken graph raises is the verdict on it
        return [*checks, Check("speech", str(error) or type(error).__name__)]
    return [*checks, *_compare(bundle, reference, given)]


@dataclass(frozen=True, eq=False)
class _Performance:
    """What one model speaks, predicts, decodes and encodes."""

    clip: EncodedClip
    requests: list[SynthesisRequest]
    frames: list[Int64Array]  # (F, G) of every text, spoken one after another
    lane_frames: list[Int64Array]  # the same, spoken side by side
    predicted: Int64Array  # (F, G): the best codes along the reference's frames
    samples: Float32Array  # (S,): the reference's frames, decoded as a stream


def _perform(model: SpeechModel, reference: _Performance | None = None) -> _Performance:
    """Run a model, along the voices and frames of the reference if there is one."""
    clip = encode_clip(model)
    own_requests = trial_requests(model, clip, _NUM_FRAMES, greedy=True)
    requests = reference.requests if reference else own_requests
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
    uniforms, ones = np.zeros((1, frames.shape[1] - 1), np.float32), np.ones(1, np.float32)
    greedy = PredictorSampling(uniforms, temperature=ones, top_k=np.zeros(1, np.int64), top_p=ones)
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
    decoder, pieces = model.codec_decoder, []
    state = decoder.initial_state()
    for start in range(0, len(codes), _FRAMES_PER_DECODE):
        samples, state = decoder.decode(codes[start : start + _FRAMES_PER_DECODE], state)
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
        return Check(name, "", precision, metric, value, lowest)

    language = ("talker", "code_predictor", "embeddings")
    yield check("lanes", "equal codes", _equal_share(given.frames, given.lane_frames), *language)
    if reference is None:
        return
    is_equal = reference.predicted == given.predicted
    yield check("talker", "agreement", float(is_equal[:, 0].mean()), *language)
    yield check("code_predictor", "equal codes", float(is_equal[:, 1:].mean()), *language)
    yield check("speech", "equal codes", _equal_share(reference.frames, given.frames), *language)
    snr = _snr_db(reference.samples, given.samples)
    yield check("codec_decoder", "SNR dB", snr, "codec_decoder")
    wanted, got = reference.clip, given.clip
    if wanted.codes is not None and got.codes is not None:
        equal = _equal_share([wanted.codes], [got.codes])
        yield check("codec_encoder", "equal codes", equal, "codec_encoder")
    if wanted.x_vector is not None and got.x_vector is not None:
        snr = _snr_db(wanted.x_vector, got.x_vector)
        yield check("speaker_encoder", "SNR dB", snr, "speaker_encoder")


def _check_files(bundle: InstalledBundle) -> Check:
    """Compare every hash with the manifest."""
    problems = []
    for file in bundle.manifest.files:
        try:
            if sha256_of(bundle.directory / file.path) != file.sha256:
                problems.append(f"{file.path} has another SHA-256 than the manifest states")
        except OSError as error:
            problems.append(f"{file.path} cannot be read ({error.strerror})")
    return Check("files", "; ".join(problems))


def _differing_facts(given: ModelFacts, wanted: ModelFacts) -> str:
    """Name the facts that two models do not share; the builder may lower the positions."""
    ours, theirs = asdict(replace(given, max_positions=wanted.max_positions)), asdict(wanted)
    return ", ".join(
        f"{key} is {value!r}, not {theirs[key]!r}"
        for key, value in ours.items()
        if value != theirs[key]
    )


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
    error = np.square(given.astype(np.float64) - wanted).sum()
    signal = np.square(wanted, dtype=np.float64).sum()
    return float(-10 * np.log10(max(error / max(signal, 1e-30), 1e-20)))  # 200 dB: equal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "bundle",
        metavar="BUNDLE",
        help="a bundle's directory, or an installed model such as MODEL or MODEL/VARIANT",
    )
    help_text = "compare with this checkpoint in float32, too"
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help=help_text)
    add_flags(parser, "data_dirs", "threads")


def run(args: argparse.Namespace, config: Config) -> int:
    """Verify and print the checks; return 0 for PASS and 1 for FAIL."""
    bundle = find_bundle(args.bundle, config.data_paths)
    checks = verify_bundle(bundle, args.checkpoint, config.num_threads)
    has_passed = all(check.has_passed for check in checks)
    print(f"{bundle.directory}: {bundle.manifest.name}, {bundle.manifest.recipe}")
    print(*checks, sep="\n")
    if args.checkpoint is None:
        print("Not compared with a checkpoint; --checkpoint DIR does that.")
    print(_VERDICT[has_passed])
    return 0 if has_passed else 1


def _tell(stage: str) -> None:
    print(f"{stage} ...", file=sys.stderr)
