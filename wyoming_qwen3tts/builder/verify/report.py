"""What verifying found: a verdict per component, with its reasons."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wyoming_qwen3tts.builder.verify.census import GraphCensus

COMPONENTS: Final = (
    "manifest",
    "tokenizer",
    "embeddings",
    "talker",
    "code_predictor",
    "codec_decoder",
    "codec_encoder",
    "speaker_encoder",
    "free_running",
)
"""In the order of a report; the last one is talker, code predictor and embeddings together."""

Figure = float | list[float]


@dataclass(frozen=True)
class Limit:
    """What a figure has to reach."""

    figure: str
    bound: float
    reason: str
    is_lowest: bool = True
    """Whether the figure must be at least, not at most, the bound."""

    def is_met(self, value: Figure | None) -> bool:
        """Whether a figure is within the limit; one that is missing or no number is not."""
        if not isinstance(value, int | float):
            return False
        return value >= self.bound if self.is_lowest else value <= self.bound


@dataclass
class ComponentReport:
    """One component."""

    name: str
    precision: str | None = None
    """The coarsest precision of its weights; None where it has none, or nothing could be read."""
    graphs: list[GraphCensus] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    problems: list[str] = field(default_factory=list)
    """Each is enough for a FAIL."""
    notes: list[str] = field(default_factory=list)
    """What one should know, and no fault."""

    @property
    def missed(self) -> tuple[Limit, ...]:
        """Limits that are not met."""
        return tuple(
            limit for limit in self.limits if not limit.is_met(self.figures.get(limit.figure))
        )

    @property
    def has_passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.missed

    def faults(self) -> Iterator[str]:
        """Yield a line for everything that is wrong."""
        yield from self.problems
        for limit in self.missed:
            value = self.figures.get(limit.figure)
            shown = "missing" if not isinstance(value, int | float) else f"{value:.6g}"
            word = "at least" if limit.is_lowest else "at most"
            yield f"{limit.figure} is {shown}, {word} {limit.bound:g} is wanted: {limit.reason}"

    def as_json(self) -> dict[str, Any]:
        """Return the report of a component as JSON values."""
        return {
            "component": self.name,
            "verdict": verdict(self.has_passed),
            "precision": self.precision,
            "graphs": [_census_json(census) for census in self.graphs],
            "figures": self.figures,
            "limits": [
                {
                    "figure": limit.figure,
                    "at_least" if limit.is_lowest else "at_most": limit.bound,
                    "is_met": limit not in self.missed,
                    "reason": limit.reason,
                }
                for limit in self.limits
            ],
            "problems": self.problems,
            "notes": self.notes,
        }


@dataclass
class VerifyReport:
    """A whole bundle."""

    directory: Path
    layout: str
    """"own" or "published"."""
    name: str = ""
    device: str = ""
    recipe: str = ""
    num_files: int = 0
    num_bytes: int = 0
    num_hashed: int = 0
    """Files whose size and hash are as the manifest states."""
    checkpoint: Path | None = None
    num_frames: int = 0
    """Frames of the trajectory that was compared."""
    seconds: float = 0.0
    components: dict[str, ComponentReport] = field(default_factory=dict)

    def component(self, name: str) -> ComponentReport:
        """Return the report of a component, a new one if nothing is known yet."""
        return self.components.setdefault(name, ComponentReport(name))

    @property
    def in_order(self) -> list[ComponentReport]:
        """Reports of the components in the order of :data:`COMPONENTS`."""
        return sorted(self.components.values(), key=lambda report: COMPONENTS.index(report.name))

    @property
    def has_passed(self) -> bool:
        """Whether every component has passed."""
        return all(report.has_passed for report in self.components.values())

    def as_json(self) -> dict[str, Any]:
        """Return the whole report as JSON values."""
        return {
            "bundle": str(self.directory),
            "layout": self.layout,
            "name": self.name,
            "device": self.device,
            "recipe": self.recipe,
            "files": self.num_files,
            "bytes": self.num_bytes,
            "files_as_stated": self.num_hashed,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "frames": self.num_frames,
            "seconds": round(self.seconds, 2),
            "verdict": verdict(self.has_passed),
            "components": [report.as_json() for report in self.in_order],
        }


def verdict(has_passed: bool) -> str:
    """Return PASS or FAIL."""
    return "PASS" if has_passed else "FAIL"


def _census_json(census: GraphCensus) -> Mapping[str, Any]:
    return {
        "graph": census.name,
        "nodes": census.num_nodes,
        "weight_bytes": census.weight_bytes,
        "precisions": census.precisions,
        "quantized_operators": [
            {
                "operator": entry.op_type,
                "bits": entry.bits,
                "block_size": entry.block_size,
                "nodes": entry.num_nodes,
                "weights": entry.num_weights,
            }
            for entry in census.operators
        ],
    }
