"""The opened models of a server: opened when needed, shared, unloaded under a memory limit."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wyoming_qwen3tts.model.bundle import SessionOptions, open_bundle, shared_decoders
from wyoming_qwen3tts.model.speech_model import SpeechModel
from wyoming_qwen3tts.server.bundles import InstalledBundle
from wyoming_qwen3tts.server.machine import resident_memory_bytes
from wyoming_qwen3tts.server.model_usage import ModelUsage
from wyoming_qwen3tts.server.pacing import Pace
from wyoming_qwen3tts.server.speed_record import SpeedRecord
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

_LOGGER = logging.getLogger(__name__)
_BYTES_PER_MB = 2**20


@dataclass
class _Slot:
    """One model's place in the pool."""

    bundle: InstalledBundle
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    synthesizer: Synthesizer | None = None
    load_s: float = 0.0
    memory_bytes: int | None = None
    num_users: int = 0
    last_used_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    usage: ModelUsage = field(default_factory=ModelUsage)

    @property
    def num_bytes(self) -> int:
        """Memory that the opened graphs need, about: the weights of those that stay open."""
        return self.bundle.open_bytes


@dataclass(frozen=True)
class ModelStatus:
    """State of one model, for reports."""

    name: str
    device: str
    precision: str
    is_loaded: bool
    load_s: float
    """Seconds that opening took, the last time."""
    num_users: int
    num_bytes: int
    """Weights of the graphs that stay open."""
    memory_bytes: int | None
    """Resident memory that opening took, about; None where the system does not tell."""
    usage: ModelUsage

    def describe(self) -> str:
        """Return the state as a log line."""
        state = "open" if self.is_loaded else "closed"
        memory = (
            "unknown" if self.memory_bytes is None else f"{self.memory_bytes / _BYTES_PER_MB:.0f}MB"
        )
        return (
            f"Status: model={self.name} device={self.device} precision={self.precision} "
            f"state={state} load={self.load_s:.1f}s memory={memory} {self.usage.describe()}"
        )


class ModelPool:
    """Synthesizers by bundle."""

    def __init__(
        self,
        options: SessionOptions,
        *,
        max_lanes: int,
        memory_limit_bytes: int | None = None,
        open_model: Callable[[InstalledBundle], SpeechModel] | None = None,
    ) -> None:
        """Prepare an empty pool.

        Args:
            options: How graphs are run.
            max_lanes: Utterances that one model speaks side by side.
            memory_limit_bytes: Weights that may be open at once; None for no limit. A model that
                is larger than the limit is opened all the same, alone.
            open_model: Opens a bundle; tests give their own.
        """
        self._decoders = shared_decoders()
        self._open_model = open_model or (
            lambda bundle: open_bundle(bundle.directory, options, self._decoders)
        )
        self._max_lanes = max_lanes
        self._memory_limit_bytes = memory_limit_bytes
        self._slots: dict[str, _Slot] = {}

    @asynccontextmanager
    async def use(self, bundle: InstalledBundle) -> AsyncIterator[Synthesizer]:
        """Lend the bundle's synthesizer, opening the model first if it is not open.

        Raises:
            BundleError: The bundle cannot be opened.
        """
        slot = self._slots.setdefault(str(bundle.directory), _Slot(bundle))
        slot.num_users += 1
        try:
            async with slot.lock:
                if slot.synthesizer is None:
                    slot.synthesizer = await self._load(slot)
            yield slot.synthesizer
        except Exception as error:
            slot.usage.add_error(error)
            raise
        finally:
            slot.num_users -= 1
            slot.last_used_s = time.monotonic()

    def pace(self, bundle: InstalledBundle) -> Pace:
        """Return how fast a model that is in use speaks; whoever speaks with it notes it there."""
        return self._slots[str(bundle.directory)].pace

    def usage(self, bundle: InstalledBundle) -> ModelUsage:
        """Return what a model that is in use has done; whoever speaks with it adds it there."""
        return self._slots[str(bundle.directory)].usage

    def record_speed(self, record: SpeedRecord) -> None:
        """Remember how fast the models that have spoken are on this machine."""
        for slot in self._slots.values():
            if slot.pace.rtf is not None:
                record.note(slot.bundle, slot.pace.rtf)

    def status(self) -> list[ModelStatus]:
        """Return the state of every model that was used."""
        return [self._status(slot) for slot in self._slots.values()]

    def log_status(self) -> None:
        """Write a line for every model that was used."""
        for status in self.status():
            _LOGGER.info("%s", status.describe())

    @staticmethod
    def _status(slot: _Slot) -> ModelStatus:
        return ModelStatus(
            name=slot.bundle.manifest.name,
            device=slot.bundle.manifest.device,
            precision=slot.bundle.manifest.recipe,
            is_loaded=slot.synthesizer is not None,
            load_s=slot.load_s,
            num_users=slot.num_users,
            num_bytes=slot.num_bytes,
            memory_bytes=slot.memory_bytes,
            usage=slot.usage,
        )

    def unload_idle(self, unused_s: float) -> None:
        """Close the models that nobody has used for ``unused_s`` seconds."""
        for slot in self._slots.values():
            if slot.num_users == 0 and time.monotonic() - slot.last_used_s >= unused_s:
                self._unload(slot)

    async def _load(self, slot: _Slot) -> Synthesizer:
        self._make_room(slot)
        started_s = time.perf_counter()
        before_bytes = resident_memory_bytes()
        # In a thread of its own: describe and other models go on meanwhile.
        model = await asyncio.to_thread(self._open_model, slot.bundle)
        slot.load_s = time.perf_counter() - started_s
        after_bytes = resident_memory_bytes()
        if before_bytes is not None and after_bytes is not None:
            slot.memory_bytes = max(after_bytes - before_bytes, 0)
        _LOGGER.info("Opened %s in %.1f s", slot.bundle.reference, slot.load_s)
        return Synthesizer(model, max_lanes=self._max_lanes)

    def _make_room(self, wanted: _Slot) -> None:
        if self._memory_limit_bytes is None:
            return
        loaded = [slot for slot in self._slots.values() if slot.synthesizer is not None]
        total = wanted.num_bytes + sum(slot.num_bytes for slot in loaded)
        for slot in sorted(loaded, key=lambda slot: slot.last_used_s):
            if total <= self._memory_limit_bytes:
                return
            if slot.num_users == 0:
                total -= slot.num_bytes
                self._unload(slot)

    def _unload(self, slot: _Slot) -> None:
        if slot.synthesizer is None:
            return
        slot.synthesizer = None
        megabytes = slot.num_bytes / _BYTES_PER_MB
        _LOGGER.info("Closed %s (%.0f MB)", slot.bundle.reference, megabytes)
        _LOGGER.info("%s", self._status(slot).describe())
