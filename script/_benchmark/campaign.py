"""What is run, and in which order: every configuration once in each round, so that drift hits all.

Each configuration lives in a process of its own. In a round they take turns (A B C, A B C, ...);
a measurement that was disturbed is made again, as long as time allows.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from script._benchmark.attempts import Attempts
from script._benchmark.extent import Extent
from script._benchmark.floor import codec_operations_per_frame, weight_bytes_per_run
from script._benchmark.machine import describe_machine
from script._benchmark.materials import Materials
from script._benchmark.placement import CorePlacement, Placement
from script._benchmark.processes import Worker, log
from script._benchmark.report import Campaign, Settings, Work
from script._benchmark.texts import PARAGRAPH, SENTENCE, STREAM, WORD, Text
from tests.support.random_checkpoint import ModelSize, Preset
from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.builder.recipe import Recipe
from wyoming_qwen3tts.runtime.manifest import read_manifest

LANES: Final = 4
STREAMS: Final = (1, 2, 4)
_PUBLISHED_PAST: Final = 100


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    size: ModelSize
    recipe: Recipe
    preset: Preset
    num_threads: int
    extent: Extent


@dataclass(frozen=True)
class Measurement:
    """One entry of a round."""

    name: str
    worker: Worker
    task: str
    arguments: dict[str, Any]
    lanes: int | None = None
    """Of a speech measurement."""


class Rounds:
    """Makes measurements in turns and keeps what counts."""

    def __init__(
        self, measurements: Sequence[Measurement], extent: Extent, placement: Placement
    ) -> None:
        """Prepare."""
        self._measurements = measurements
        self._extent = extent
        self._attempts = Attempts(placement, max_tries=extent.max_tries, time_s=extent.retry_s)
        self.runs: dict[str, list[dict[str, Any]]] = {item.name: [] for item in measurements}

    def run(self) -> None:
        """Make all rounds that fit into the budget."""
        extent = self._extent
        started_s = time.perf_counter()
        longest_s = 0.0
        for done in range(extent.max_rounds):
            round_started_s = time.perf_counter()
            expected_end_s = round_started_s - started_s + longest_s
            if done >= extent.min_rounds and expected_end_s > extent.budget_s:
                break
            for item in self._measurements:
                figures = self._attempts.best(item.worker, item.task, item.arguments)
                self.runs[item.name].append(figures)
            longest_s = max(longest_s, time.perf_counter() - round_started_s)
            log(f"Round {done + 1}: {longest_s:.0f} s")


def run_campaign(wishes: Wishes, materials: Materials) -> Campaign:
    """Measure one size and precision against the machine and the published design."""
    ours = materials.bundle(wishes.recipe)
    bundles = _Bundles(
        ours=ours,
        published=materials.published_bundle(wishes.recipe.talker.layers),
        codecs=materials.codec_decoders(ours),
    )
    started_s = time.perf_counter()
    with ExitStack() as stack:
        log("Opening ...")
        measurements = _prepare(bundles, wishes, stack)
        placement = CorePlacement(wishes.num_threads)
        rounds = Rounds(measurements, wishes.extent, placement)
        rounds.run()
    return Campaign(
        settings=Settings(
            size=wishes.size,
            precision=wishes.recipe.name,
            preset=wishes.preset,
            extent=wishes.extent.name,
            num_threads=wishes.num_threads,
            lanes=LANES,
            program_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
        machine=describe_machine(),
        work=_work(bundles.ours, materials),
        runs=rounds.runs,
        lanes={item.name: item.lanes for item in measurements if item.lanes is not None},
        duration_s=time.perf_counter() - started_s,
    )


@dataclass(frozen=True)
class _Bundles:
    """What is opened."""

    ours: Path
    published: Path
    codecs: tuple[Path, Path]
    """With the float32 and with the quantised codec decoder."""


def _prepare(bundles: _Bundles, wishes: Wishes, stack: ExitStack) -> list[Measurement]:
    """Start and warm up every process; return what a round consists of."""

    def start(kind: str, name: str, **settings: Any) -> Worker:
        worker = Worker(kind, name, num_threads=wishes.num_threads, **settings)
        return stack.enter_context(worker)

    extent = wishes.extent
    one_lane = start("speech", "one lane", bundle_directory=bundles.ours, max_lanes=1)
    lanes = start("speech", f"{LANES} lanes", bundle_directory=bundles.ours, max_lanes=LANES)
    baseline = start("published", "the published design", bundle_directory=bundles.published)
    frames: dict[str, Any] = {
        "num_frames": extent.published_frames,
        "past": _PUBLISHED_PAST,
        "limit_s": extent.published_limit_s,
    }
    text = {"text": SENTENCE.sentences[0]}
    measurements = [
        Measurement("machine", start("machine", "the machine"), "probe", {}),
        *_speech_measurements(one_lane, lanes, extent.text_share),
        Measurement("first_audio_parts", one_lane, "first_audio_parts", text),
        Measurement("published", baseline, "frames", frames),
    ]
    reference, other = bundles.codecs
    settings = {"reference_directory": reference, "other_directory": other}
    comparison = start("codec_comparison", "the codec decoders", **settings)
    measurements.append(Measurement("codec_comparison", comparison, "compare", {}))
    for worker in (one_lane, lanes):
        worker.run("speak", **_speak_arguments([WORD], share=0.0))
    baseline.run("frames", **{**frames, "num_frames": 1})
    return measurements


def _work(bundle: Path, materials: Materials) -> Work:
    facts = read_manifest(bundle).facts
    return Work(
        talker_bytes=weight_bytes_per_run(bundle / "talker.onnx"),
        predictor_bytes=weight_bytes_per_run(bundle / "code_predictor.onnx"),
        codec_operations=codec_operations_per_frame(materials.codec_config()),
        samples_per_frame=facts.samples_per_frame,
        sample_rate_hz=facts.sample_rate_hz,
    )


def _speech_measurements(one_lane: Worker, lanes: Worker, share: float) -> list[Measurement]:
    def speak(
        name: str, worker: Worker, texts: Sequence[Text], *, is_answer: bool = False
    ) -> Measurement:
        return Measurement(
            name,
            worker,
            "speak",
            {**_speak_arguments(texts, share=share), "is_answer": is_answer},
            lanes=1 if worker is one_lane else LANES,
        )

    return [
        speak("word", one_lane, [WORD]),
        speak("sentence", one_lane, [SENTENCE]),
        speak("paragraph", one_lane, [PARAGRAPH]),
        speak("paragraph_lanes", lanes, [PARAGRAPH]),
        speak("paragraph_heard", lanes, [PARAGRAPH], is_answer=True),
        *(speak(f"streams_{count}", lanes, [STREAM] * count) for count in STREAMS),
        speak(f"streams_{STREAMS[-1]}_fifo", one_lane, [STREAM] * STREAMS[-1]),
    ]


def _speak_arguments(texts: Sequence[Text], share: float) -> dict[str, Any]:
    return {
        "texts": [sentence for text in texts for sentence in text.sentences],
        "frames": [frames for text in texts for frames in text.frames(share)],
    }
