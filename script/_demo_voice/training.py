"""What both trainings share: rate, averaged weights, saving and going on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

_LEAST: Final = 0.02
_AVERAGE: Final = 0.999


class Training:
    """A module under training that can be stopped at any time and goes on where it was."""

    def __init__(
        self,
        path: Path,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        rate: Callable[[int], float],
    ) -> None:
        """Begin, or go on from ``path``."""
        self._path = path
        self._module = module
        self._optimizer = optimizer
        self._rate = rate
        self.step = 0
        self.cpu_s = 0.0
        """Processor time in all, of every run."""
        self.table: list[dict[str, Any]] = []
        """What was noted on the way: losses and word error rates."""
        self._average = {name: x.detach().clone() for name, x in module.state_dict().items()}
        if path.exists():
            self._load()
        self._started_s = time.process_time() - self.cpu_s

    def update(self, loss: Tensor) -> None:
        """Do one step."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self.step)
        self._optimizer.zero_grad()
        loss.backward()
        trained = [p for p in self._module.parameters() if p.requires_grad]
        nn.utils.clip_grad_norm_(trained, 1.0)
        self._optimizer.step()
        self.step += 1
        keep = min(_AVERAGE, self.step / (self.step + 10))
        with torch.no_grad():
            for name, value in self._module.state_dict().items():
                if value.is_floating_point():
                    self._average[name].lerp_(value, 1 - keep)

    def averaged(self) -> dict[str, Tensor]:
        """Return the averaged weights: what is measured and exported."""
        return self._average

    def note(self, **figures: Any) -> None:
        """Add a line to the table."""
        self.cpu_s = time.process_time() - self._started_s
        line = {"step": self.step, "cpu_min": round(self.cpu_s / 60, 1), **figures}
        self.table.append(line)
        print(" ".join(f"{name} {value}" for name, value in line.items()), flush=True)

    def save(self) -> None:
        """Write everything that going on needs; the file appears complete or not at all."""
        self.cpu_s = time.process_time() - self._started_s
        partial = self._path.with_suffix(".partial")
        values = {
            "module": self._module.state_dict(),
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "cpu_s": self.cpu_s,
            "table": self.table,
            "chance": torch.get_rng_state(),
        }
        torch.save(values, partial)
        partial.rename(self._path)

    def _load(self) -> None:
        values = torch.load(self._path, weights_only=True)
        self._module.load_state_dict(values["module"])
        self._average = values["average"]
        self._optimizer.load_state_dict(values["optimizer"])
        self.step, self.cpu_s = values["step"], values["cpu_s"]
        self.table = values["table"]
        torch.set_rng_state(values["chance"])


def steady_then_down(
    peak: float, warm_up_steps: int, num_steps: int, share_down: float
) -> Callable[[int], float]:
    """Return a rate: up, steady, and down to next to nothing in the last share of the steps.

    Until it goes down it does not depend on ``num_steps``, so that more steps can be asked for.
    """

    def rate(step: int) -> float:
        left = (num_steps - step) / (share_down * num_steps)
        return peak * min(1.0, (step + 1) / warm_up_steps, max(_LEAST, left))

    return rate
