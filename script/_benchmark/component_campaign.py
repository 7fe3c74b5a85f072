"""``--components``: single graphs, each in a process of its own, in turns with another bundle's."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from script._benchmark.attempts import Attempts
from script._benchmark.components import CASES
from script._benchmark.extent import Extent
from script._benchmark.floor import codec_operations_per_frame, weight_bytes_per_run
from script._benchmark.noise import QUIET
from script._benchmark.placement import CorePlacement
from script._benchmark.processes import Worker, log
from wyoming_qwen3tts.builder.config import CodecDecoderConfig

_CODEC_DECODER: Final = "codec_decoder"


@dataclass(frozen=True)
class ComponentFigures:
    """One case of one component."""

    component: str
    case: str
    median_ms: float
    best_ms: float
    per_frame_ms: float | None
    """``median_ms`` divided by the frames that the call makes, over all lanes; not of a prefill."""
    floor_ratio: float | None
    """``median_ms`` over the time that reading the weights, or the arithmetic, takes at least."""
    against_ms: float | None
    """``median_ms`` of the other bundle."""
    peak_rss_mb: float | None
    foreign_cpu: float | None
    """Cores that other processes used, the median of the rounds."""

    @property
    def is_noisy(self) -> bool:
        """Whether other processes disturbed the measurement."""
        return (self.foreign_cpu or 0.0) > QUIET


class ComponentCampaign:
    """Measures components of one bundle, beside the same of another one if there is one."""

    def __init__(
        self, bundle: Path, against: Path | None, extent: Extent, num_threads: int
    ) -> None:
        """Prepare; the machine is measured at once."""
        self._bundle = bundle
        self._against = against
        self._extent = extent
        self._num_threads = num_threads
        placement = CorePlacement(num_threads)
        self._attempts = Attempts(placement, max_tries=extent.max_tries, time_s=extent.retry_s)
        with Worker("machine", num_threads=num_threads) as machine:
            rates = self._attempts.best(machine, "probe", {})
        self._bytes_per_ms = rates["read_gb_per_s"][str(num_threads)] * 1e6
        self._operations_per_ms = rates["fp32_gflops"][str(num_threads)] * 1e6

    def measure(self, name: str, codec: CodecDecoderConfig) -> list[ComponentFigures]:
        """Measure every case of a component; ``codec`` says how much a frame has to compute."""
        log(f"{name} ...")
        if name == _CODEC_DECODER:
            floor_ms = codec_operations_per_frame(codec) / self._operations_per_ms
        else:
            floor_ms = weight_bytes_per_run(self._bundle / f"{name}.onnx") / self._bytes_per_ms
        runs = self._runs(name)
        return [
            _figures(name, case, by_bundle, floor_ms)
            for case, by_bundle in zip(CASES[name], runs, strict=True)
        ]

    def codec_snr_db(self) -> float | None:
        """Return how close the bundle's decoder is to the other's; None without another one."""
        if self._against is None:
            return None
        with Worker(
            "codec_comparison",
            reference_directory=self._against,
            other_directory=self._bundle,
            num_threads=self._num_threads,
        ) as worker:
            return float(worker.run("compare")["snr_db"])

    def _runs(self, name: str) -> list[list[list[dict[str, Any]]]]:
        """Return the runs of each case, of each bundle."""
        bundles = [self._bundle, *([self._against] if self._against else [])]
        runs: list[list[list[dict[str, Any]]]] = [[[] for _ in bundles] for _ in CASES[name]]
        with ExitStack() as stack:
            workers = [
                stack.enter_context(
                    Worker(
                        "component",
                        f"{name} of {bundle.name}",
                        component=name,
                        bundle_directory=bundle,
                        num_threads=self._num_threads,
                    )
                )
                for bundle in bundles
            ]
            for _ in range(self._extent.component_rounds):
                for case, by_bundle in zip(CASES[name], runs, strict=True):
                    for worker, kept in zip(workers, by_bundle, strict=True):
                        arguments = {"case": case, "limit_s": self._extent.component_limit_s}
                        kept.append(self._attempts.best(worker, "case", arguments))
        return runs


def _figures(
    name: str,
    case: dict[str, int | str],
    by_bundle: Sequence[Sequence[dict[str, Any]]],
    floor_ms: float,
) -> ComponentFigures:
    ours = by_bundle[0]
    medians_ms = [median(median(run["durations_ms"]) for run in runs) for runs in by_bundle]
    frames = int(case.get("frames", case.get("lanes", 1)))
    is_prefill = case["kind"] == "prefill"
    floor = floor_ms * (frames if name == _CODEC_DECODER else 1)
    shares = [run["foreign_cpu"] for run in ours if run["foreign_cpu"] is not None]
    peaks = [run["peak_rss_mb"] for run in ours if run["peak_rss_mb"] is not None]
    return ComponentFigures(
        component=name,
        case=_words(case),
        median_ms=medians_ms[0],
        best_ms=min(min(run["durations_ms"]) for run in ours),
        per_frame_ms=None if is_prefill else medians_ms[0] / frames,
        floor_ratio=None if is_prefill else medians_ms[0] / floor,
        against_ms=medians_ms[1] if len(medians_ms) > 1 else None,
        peak_rss_mb=max(peaks, default=None),
        foreign_cpu=median(shares) if shares else None,
    )


def _words(case: dict[str, int | str]) -> str:
    numbers = ", ".join(f"{value} {key}" for key, value in case.items() if key != "kind")
    return f"{case['kind']}: {numbers}"
