"""How much is measured: a full run, a quick one, or a trial of the benchmark itself."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Extent:
    """One extent."""

    name: str
    text_share: float
    """Part of each text's length that is spoken."""
    max_rounds: int
    min_rounds: int
    budget_s: float
    """No further round is begun that would end later than this, once ``min_rounds`` are done."""
    retry_s: float
    """Time for waiting, and for repeating disturbed measurements, in all."""
    max_tries: int
    """Of each measurement, while it is disturbed."""
    published_frames: int
    published_limit_s: float
    """For one measurement of the published design."""
    component_rounds: int
    component_limit_s: float
    """For one case of a component, in each round."""


FULL: Final = Extent(
    name="full",
    text_share=1.0,
    max_rounds=5,
    min_rounds=1,  # the largest models in float32 leave time for no more
    budget_s=360.0,
    retry_s=120.0,
    max_tries=3,
    published_frames=8,
    published_limit_s=3.0,
    component_rounds=3,
    component_limit_s=1.5,
)
QUICK: Final = Extent(
    name="quick",
    text_share=0.35,
    max_rounds=3,
    min_rounds=1,
    budget_s=80.0,
    retry_s=15.0,
    max_tries=2,
    published_frames=3,
    published_limit_s=1.5,
    component_rounds=2,
    component_limit_s=0.4,
)
TRIAL: Final = Extent(
    name="trial",
    text_share=0.0,  # as short as can be
    max_rounds=1,
    min_rounds=1,
    budget_s=0.0,
    retry_s=0.0,
    max_tries=1,
    published_frames=2,
    published_limit_s=0.5,
    component_rounds=1,
    component_limit_s=0.02,
)
