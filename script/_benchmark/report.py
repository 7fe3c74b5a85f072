"""What follows from the measurements: costs, floors, ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from script._benchmark.machine import Machine
from script._benchmark.noise import QUIET
from script._benchmark.timing import MS_PER_S

FORMAT_VERSION: Final = 3

_PARTS: Final = ("prefill", "talker", "predictor", "codec")

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a measurement -> its figures, round by round."""


@dataclass(frozen=True)
class Settings:
    """What was measured, and how."""

    size: str
    precision: str
    preset: str
    """"real", or "tiny" for a trial run whose figures mean nothing."""
    extent: str
    """"full", "quick" or "trial"."""
    num_threads: int
    lanes: int
    """Lanes of the runs with more than one."""
    program_version: str
    created: str
    """Date and time, UTC."""


@dataclass(frozen=True)
class Work:
    """What a frame takes, by the graphs' and the networks' own sizes."""

    talker_bytes: int
    predictor_bytes: int
    """Every layer once per group, every head once."""
    codec_operations: int
    samples_per_frame: int
    sample_rate_hz: int

    @property
    def frame_ms(self) -> float:
        """Length of a frame's audio."""
        return self.samples_per_frame / self.sample_rate_hz * MS_PER_S


@dataclass(frozen=True)
class Rates:
    """What the machine can do, by number of threads."""

    read_gb_per_s: dict[str, float]
    fp32_gflops: dict[str, float]
    int8_gops: dict[str, float]


@dataclass(frozen=True)
class FrameCost:
    """Milliseconds per frame of one stream, prefill left out."""

    talker_ms: float
    predictor_ms: float
    codec_ms: float
    rest_ms: float
    total_ms: float
    rtf: float


@dataclass(frozen=True)
class SpeechFigures:
    """One text, or one number of clients."""

    name: str
    lanes: int
    utterances: int
    num_frames: int
    audio_s: float
    wall_s: float
    """Median over the rounds."""
    best_wall_s: float
    rtf: float
    """Wall seconds for each second of audio of all utterances together, prefill included."""
    first_audio_ms: list[float]
    """Of each utterance, from the submission of all; medians."""
    stopped_s: float | None
    """How long the playing of the utterances, as one answer, would stop after it has begun; None
    where they are answers to several clients."""
    parts_ms: dict[str, float]
    """Where the time of a frame went, on average: each component, and prefill."""


@dataclass(frozen=True)
class FirstAudio:
    """First audio of the sentence, and its parts measured one by one."""

    measured_ms: float
    prefill_ms: float
    frame_ms: float
    decode_ms: float


@dataclass(frozen=True)
class CodecOption:
    """The quantised codec decoder beside the float32 one, both of conditioned random weights."""

    reference_ms: float
    other_ms: float
    snr_db: float


@dataclass(frozen=True)
class Noise:
    """Cores that other processes used during the measurements that count."""

    median_foreign_cpu: float | None
    worst_foreign_cpu: float | None
    apart: float | None
    """Share of the measurements in which the cores shared no cache, though at other times they do;
    None where they stay where they are."""
    is_noisy: bool
    """Half of the measurements or more were disturbed: the figures need a quieter machine."""


@dataclass(frozen=True)
class Summary:
    """The figures that targets are set for. None says that it was not measured."""

    speedup_vs_published: float | None
    language_floor_ratio: float | None
    lanes_speedup: float | None
    throughput_4_streams: float | None
    first_audio_ratio: float | None
    codec_speedup: float
    codec_snr_db: float
    peak_rss_mb: float | None


@dataclass(frozen=True)
class Report:
    """Everything, as it goes to the JSON file."""

    format_version: int
    settings: Settings
    machine: Machine
    num_rounds: int
    duration_s: float
    noise: Noise
    rates: Rates
    work: Work
    floor: FrameCost
    frame: FrameCost
    published: FrameCost
    speech: list[SpeechFigures]
    first_audio: FirstAudio
    codec_option: CodecOption
    peak_rss_mb: dict[str, float]
    """Of each process: one lane, several lanes, the published design."""
    summary: Summary
    runs: dict[str, list[dict[str, Any]]]
    """Every measurement: of those of one name, the ones with the cores together count if there are
    any."""


@dataclass(frozen=True)
class Campaign:
    """What the measuring leaves behind."""

    settings: Settings
    machine: Machine
    work: Work
    runs: Runs
    lanes: Mapping[str, int]
    """Speech measurement -> number of lanes of its synthesizer."""
    duration_s: float


def make_report(campaign: Campaign) -> Report:
    """Draw the conclusions."""
    runs = {name: _together(rounds) for name, rounds in campaign.runs.items()}
    work = campaign.work
    rates = _rates(runs["machine"])
    floor = _floor(rates, work, campaign.settings.num_threads)
    frame = _frame_cost(runs["sentence"], work)
    published = _published_cost(runs["published"], work)
    speech = [
        _speech_figures(name, lanes, runs[name], work) for name, lanes in campaign.lanes.items()
    ]
    parts = runs["first_audio_parts"]
    first_audio = FirstAudio(
        measured_ms=median(run["first_audio_ms"][0] for run in runs["sentence"]),
        **{key: _median(parts, key) for key in ("prefill_ms", "frame_ms", "decode_ms")},
    )
    option = CodecOption(
        **{
            key: _median(runs["codec_comparison"], key)
            for key in ("reference_ms", "other_ms", "snr_db")
        }
    )
    peaks = _peaks(campaign)
    return Report(
        format_version=FORMAT_VERSION,
        settings=campaign.settings,
        machine=campaign.machine,
        num_rounds=len(campaign.runs["sentence"]),
        duration_s=campaign.duration_s,
        noise=_noise(campaign.runs),
        rates=rates,
        work=work,
        floor=floor,
        frame=frame,
        published=published,
        speech=speech,
        first_audio=first_audio,
        codec_option=option,
        peak_rss_mb=peaks,
        summary=_summary(runs, floor, frame, published, first_audio, option, peaks),
        runs={name: [dict(run) for run in rounds] for name, rounds in campaign.runs.items()},
    )


def _together(rounds: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the runs that were made with the cores together, or all if there is none."""
    return [run for run in rounds if not run["cores_apart"]] or rounds


def _summary(
    runs: Runs,
    floor: FrameCost,
    frame: FrameCost,
    published: FrameCost,
    first_audio: FirstAudio,
    option: CodecOption,
    peaks: Mapping[str, float],
) -> Summary:
    language_ms = _median(runs["sentence"], "talker_step_ms") + _median(
        runs["sentence"], "predictor_run_ms"
    )
    parts_ms = first_audio.prefill_ms + first_audio.frame_ms + first_audio.decode_ms
    ours = [peak for name, peak in peaks.items() if name != "published"]
    return Summary(
        speedup_vs_published=published.total_ms / frame.total_ms,
        language_floor_ratio=language_ms / (floor.talker_ms + floor.predictor_ms),
        lanes_speedup=_median(runs["paragraph"], "wall_s")
        / _median(runs["paragraph_lanes"], "wall_s"),
        throughput_4_streams=_frames_per_s(runs["streams_4"]) / _frames_per_s(runs["streams_1"]),
        first_audio_ratio=first_audio.measured_ms / parts_ms,
        codec_speedup=option.reference_ms / option.other_ms,
        codec_snr_db=option.snr_db,
        peak_rss_mb=max(ours, default=None),
    )


def _rates(runs: Sequence[Mapping[str, Any]]) -> Rates:
    """Return the medians over the rounds: the machine's speed drifts like that of the model."""
    return Rates(
        **{
            kind: {count: median(run[kind][count] for run in runs) for count in runs[0][kind]}
            for kind in ("read_gb_per_s", "fp32_gflops", "int8_gops")
        }
    )


def _floor(rates: Rates, work: Work, num_threads: int) -> FrameCost:
    bytes_per_ms = rates.read_gb_per_s[str(num_threads)] * 1e6
    operations_per_ms = rates.fp32_gflops[str(num_threads)] * 1e6
    talker_ms = work.talker_bytes / bytes_per_ms
    predictor_ms = work.predictor_bytes / bytes_per_ms
    codec_ms = work.codec_operations / operations_per_ms
    return _cost(talker_ms, predictor_ms, codec_ms, 0.0, work)


def _frame_cost(runs: Sequence[Mapping[str, Any]], work: Work) -> FrameCost:
    """Return the medians of a speech measurement with one lane."""

    def per_frame_ms(seconds: str, first: int = 0) -> float:
        each = [run[seconds] / (run["num_frames"] - first) for run in runs]
        return float(median(each)) * MS_PER_S

    rest_ms = median(_rest_s(run) / run["num_frames"] for run in runs) * MS_PER_S
    return _cost(
        # The first frame comes from the prefill.
        per_frame_ms("talker_s", first=1),
        per_frame_ms("predictor_s"),
        per_frame_ms("codec_s"),
        rest_ms,
        work,
    )


def _rest_s(run: Mapping[str, Any]) -> float:
    return float(run["wall_s"]) - sum(float(run[f"{part}_s"]) for part in _PARTS)


def _published_cost(runs: Sequence[Mapping[str, Any]], work: Work) -> FrameCost:
    codec_ms = median(run["codec_run_ms"] / run["codec_frames_per_run"] for run in runs)
    talker_ms, predictor_ms = _median(runs, "talker_ms"), _median(runs, "predictor_ms")
    return _cost(talker_ms, predictor_ms, codec_ms, 0.0, work)


def _cost(
    talker_ms: float, predictor_ms: float, codec_ms: float, rest_ms: float, work: Work
) -> FrameCost:
    total_ms = talker_ms + predictor_ms + codec_ms + rest_ms
    return FrameCost(
        talker_ms, predictor_ms, codec_ms, rest_ms, total_ms, rtf=total_ms / work.frame_ms
    )


def _speech_figures(
    name: str, lanes: int, runs: Sequence[Mapping[str, Any]], work: Work
) -> SpeechFigures:
    walls = [run["wall_s"] for run in runs]
    audio_s = runs[0]["num_samples"] / work.sample_rate_hz
    first = zip(*(run["first_audio_ms"] for run in runs), strict=True)
    return SpeechFigures(
        name=name,
        lanes=lanes,
        utterances=len(runs[0]["first_audio_ms"]),
        num_frames=runs[0]["num_frames"],
        audio_s=audio_s,
        wall_s=median(walls),
        best_wall_s=min(walls),
        rtf=median(walls) / audio_s,
        first_audio_ms=[median(values) for values in first],
        stopped_s=None if name.startswith("streams") else median(run["stopped_s"] for run in runs),
        parts_ms={
            part: median(run[f"{part}_s"] / run["num_frames"] for run in runs) * MS_PER_S
            for part in _PARTS
        },
    )


def _peaks(campaign: Campaign) -> dict[str, float]:
    """Return the memory of each process that ran a model."""
    peaks: dict[str, float] = {}
    processes = {
        name: "one_lane" if lanes == 1 else "lanes" for name, lanes in campaign.lanes.items()
    }
    for name, process in {**processes, "published": "published"}.items():
        for run in campaign.runs[name]:
            if run["peak_rss_mb"] is not None:
                peaks[process] = max(peaks.get(process, 0.0), run["peak_rss_mb"])
    return peaks


def _noise(runs: Runs) -> Noise:
    shares = [run["foreign_cpu"] for rounds in runs.values() for run in rounds]
    known = [share for share in shares if share is not None]
    places = [run["cores_apart"] for rounds in runs.values() for run in rounds]
    moving = [is_apart for is_apart in places if is_apart is not None]
    apart = sum(moving) / len(moving) if moving else None
    if not known:
        return Noise(None, None, apart, is_noisy=False)
    return Noise(median(known), max(known), apart, is_noisy=median(known) > QUIET)


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(median(run[key] for run in runs))


def _frames_per_s(runs: Sequence[Mapping[str, Any]]) -> float:
    return float(median(run["num_frames"] / run["wall_s"] for run in runs))
