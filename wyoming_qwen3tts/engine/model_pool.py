"""The open models of a server: opened on demand, shared, closed when idle or over the limit."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from wyoming_qwen3tts.engine.prebuffer import SpeedEstimate
from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.errors import BundleError, Qwen3TTSError, RequestError, is_out_of_memory
from wyoming_qwen3tts.machine import resident_memory_bytes, return_free_memory
from wyoming_qwen3tts.models.bundles import InstalledBundle, read_bundle
from wyoming_qwen3tts.runtime.bundle import SharedDecoders, open_bundle
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

_LOGGER = logging.getLogger(__name__)

_MB: Final = 10**6
_WARNING_REASONS: Final = frozenset({"length", "retry"})


@dataclass
class ModelUsage:
    """What one model has done since the server started, the warm-up included."""

    num_requests: int = 0
    num_utterances: int = 0
    audio_s: float = 0.0
    synthesis_s: float = 0.0
    """Sum over utterances, from the prefill to the end."""
    num_warnings: int = 0
    """Utterances that were cut off or needed a second attempt, and refused requests."""
    num_errors: int = 0
    """Failed requests, and failed attempts to open the model."""

    @property
    def rtf(self) -> float | None:
        """Synthesis seconds per second of audio; None without audio."""
        return self.synthesis_s / self.audio_s if self.audio_s else None

    def add(self, report: RequestReport) -> None:
        """Count a finished request."""
        self.num_requests += 1
        self.num_utterances += report.num_utterances
        self.audio_s += report.audio_s
        self.synthesis_s += report.synthesis_s
        self.num_warnings += sum(reason in _WARNING_REASONS for reason in report.finish_reasons)

    def add_error(self, error: Exception) -> None:
        """Count a failure."""
        if isinstance(error, RequestError):
            self.num_warnings += 1
        else:
            self.num_errors += 1

    def describe(self) -> str:
        """Return the values as the end of a log line."""
        rtf = "none" if self.rtf is None else f"{self.rtf:.2f}"
        return (
            f"requests={self.num_requests} sentences={self.num_utterances} "
            f"generation={self.synthesis_s:.1f}s audio={self.audio_s:.1f}s rtf={rtf} "
            f"warnings={self.num_warnings} errors={self.num_errors}"
        )


@dataclass(eq=False)
class PooledModel:
    """One model of the pool, and its state for reports."""

    bundle: InstalledBundle
    synthesizer: Synthesizer | None = None
    opening: "asyncio.Task[Synthesizer] | None" = None
    """While the model is being opened, for every request that waits for it."""
    load_s: float = 0.0
    """Seconds that opening took, the last time."""
    memory_bytes: int | None = None
    """Resident memory that opening took, about; None where the system does not report it."""
    num_users: int = 0
    last_used_s: float = 0.0
    error: str | None = None
    """Why the model cannot speak; None after a success."""
    speed: SpeedEstimate = field(default_factory=SpeedEstimate)
    usage: ModelUsage = field(default_factory=ModelUsage)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.bundle.manifest.name

    @property
    def device(self) -> str:
        """What the bundle was built for."""
        return self.bundle.manifest.device

    @property
    def precision(self) -> str:
        """Precision of the bundle."""
        return self.bundle.manifest.recipe

    @property
    def is_loaded(self) -> bool:
        """Whether the model is open."""
        return self.synthesizer is not None

    @property
    def num_bytes(self) -> int:
        """Weights of the graphs that stay open."""
        return self.bundle.open_bytes

    def describe(self) -> str:
        """Return the state as a log line."""
        state = "open" if self.is_loaded else "closed"
        memory = "unknown" if self.memory_bytes is None else f"{self.memory_bytes / _MB:.0f}MB"
        return (
            f"Status: model={self.name} device={self.device} precision={self.precision} "
            f"state={state} load={self.load_s:.1f}s memory={memory} {self.usage.describe()}"
        )


class ModelPool:
    """Synthesizers by bundle."""

    def __init__(
        self,
        num_threads: int,
        *,
        max_lanes: int,
        memory_limit_bytes: int | None = None,
        open_model: Callable[[InstalledBundle], SpeechModel] | None = None,
        on_replaced: Callable[[InstalledBundle, InstalledBundle], None] | None = None,
    ) -> None:
        """Prepare an empty pool.

        Args:
            num_threads: Threads of a graph.
            max_lanes: Utterances that one model speaks at the same time.
            memory_limit_bytes: Weights that may be open at once; None for no limit. A model that
                is larger than the limit is opened alone.
            open_model: Opens a bundle; tests give their own.
            on_replaced: Called with the old and the new bundle when another one lies in the
                directory of a model that is opened again.
        """
        decoders = SharedDecoders()
        self._open_model = open_model or (
            lambda bundle: open_bundle(bundle.directory, num_threads, decoders)
        )
        self._max_lanes = max_lanes
        self._memory_limit_bytes = memory_limit_bytes
        self._on_replaced = on_replaced
        self._models: dict[str, PooledModel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, bundle: InstalledBundle) -> AsyncIterator[tuple[Synthesizer, PooledModel]]:
        """Lend the bundle's synthesizer; open the model first if necessary.

        Raises:
            BundleError: The bundle cannot be opened.
        """
        model = self._models.setdefault(str(bundle.directory), PooledModel(bundle))
        model.num_users += 1
        try:
            yield await self._synthesizer(model), model
        except Exception as error:
            model.usage.add_error(error)
            raise
        else:
            model.error = None
        finally:
            model.num_users -= 1
            model.last_used_s = time.monotonic()
            # Models in use at the same time may exceed the limit.
            self._enforce_memory_limit()

    async def _synthesizer(self, model: PooledModel) -> Synthesizer:
        if model.synthesizer is not None:
            return model.synthesizer
        if model.opening is None:
            model.opening = asyncio.create_task(self._open(model))
            # Every request that waits may have been cancelled; then asyncio must not complain.
            model.opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Shielded: if the client disconnects, the next one finds the model open.
        return await asyncio.shield(model.opening)

    def record_error(self, bundle: InstalledBundle, error: Exception) -> None:
        """Record why a model cannot speak; a later success removes it."""
        if (model := self._models.get(str(bundle.directory))) is not None:
            model.error = str(error)

    def status(self) -> list[PooledModel]:
        """Return every model that was used."""
        return list(self._models.values())

    def log_status(self) -> None:
        """Write a log line for every model that was used."""
        for model in self.status():
            _LOGGER.info("%s", model.describe())

    async def unload_idle(self, unused_s: float) -> int:
        """Close the models that were not used for ``unused_s`` seconds; return how many."""
        idle = [
            model
            for model in self._models.values()
            if model.num_users == 0 and time.monotonic() - model.last_used_s >= unused_s
        ]
        closing = [task for model in idle if (task := self._close(model)) is not None]
        await asyncio.gather(*closing)
        return len(closing)

    async def _open(self, model: PooledModel) -> Synthesizer:
        self._enforce_memory_limit()
        started_s = time.perf_counter()
        before_bytes = resident_memory_bytes()
        try:
            opened = await self._open_files(model)
        except BundleError as error:
            model.error = str(error)
            raise
        finally:
            model.opening = None
        model.synthesizer = Synthesizer(opened, max_lanes=self._max_lanes)
        model.last_used_s = time.monotonic()
        model.load_s = time.perf_counter() - started_s
        after_bytes = resident_memory_bytes()
        if before_bytes is not None and after_bytes is not None:
            model.memory_bytes = max(after_bytes - before_bytes, 0)
        _LOGGER.info("Opened %s in %.1f s", model.bundle.reference, model.load_s)
        return model.synthesizer

    async def _open_files(self, model: PooledModel) -> SpeechModel:
        bundle = model.bundle
        while True:
            try:
                # In a thread: describe is answered and other models speak meanwhile.
                current = await asyncio.to_thread(read_bundle, bundle.directory)
                if current.manifest != bundle.manifest:
                    _LOGGER.info("%s was replaced", bundle.reference)
                    model.bundle = current
                    if self._on_replaced is not None:
                        self._on_replaced(bundle, current)
                    bundle = current
                return await asyncio.to_thread(self._open_model, bundle)
            except Exception as error:
                if is_out_of_memory(error):
                    if await self.unload_idle(0.0):
                        continue
                    raise BundleError(
                        f"{bundle.reference} cannot be opened: out of memory; close other "
                        "programs, or serve a smaller model or a lower precision."
                    ) from error
                if isinstance(error, Qwen3TTSError):
                    raise
                raise BundleError(f"{bundle.directory} cannot be opened: {error!r}.") from error

    def _enforce_memory_limit(self) -> None:
        """Close idle models, the least recently used first, until the rest fits into the limit."""
        if self._memory_limit_bytes is None:
            return
        # A model that is being opened counts already.
        held = [model for model in self._models.values() if model.synthesizer or model.opening]
        idle = [model for model in held if model.synthesizer and model.num_users == 0]
        total = sum(model.num_bytes for model in held)
        for model in sorted(idle, key=lambda model: model.last_used_s):
            # Never close the only one: it would be opened again for each request.
            if total <= self._memory_limit_bytes or total == model.num_bytes:
                return
            total -= model.num_bytes
            self._close(model)

    def _close(self, model: PooledModel) -> "asyncio.Task[None] | None":
        """Start to close a model, in a thread: freeing its memory takes a while."""
        if model.synthesizer is None:
            return None
        holder = [model.synthesizer]
        model.synthesizer = None
        task = asyncio.create_task(self._free(model, holder))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _free(self, model: PooledModel, holder: list[Synthesizer]) -> None:
        before_bytes = resident_memory_bytes()
        await asyncio.to_thread(_free_memory, holder)
        after_bytes = resident_memory_bytes()
        memory = ""
        if before_bytes is not None and after_bytes is not None:
            memory = f"; memory went from {before_bytes / _MB:.0f} MB to {after_bytes / _MB:.0f} MB"
        _LOGGER.info("Closed %s%s", model.bundle.reference, memory)
        _LOGGER.info("%s", model.describe())


def _free_memory(holder: list[Synthesizer]) -> None:
    holder.clear()
    return_free_memory()
