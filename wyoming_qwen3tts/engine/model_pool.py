"""The open models of a server: opened on demand, shared, closed when idle or over the limit."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wyoming_qwen3tts.engine.prebuffer import SpeedEstimate
from wyoming_qwen3tts.errors import BundleError, Qwen3TTSError, is_out_of_memory
from wyoming_qwen3tts.machine import resident_memory_bytes, trim_free_memory
from wyoming_qwen3tts.models.bundles import InstalledBundle, read_bundle
from wyoming_qwen3tts.runtime.bundle import SharedDecoders, open_bundle
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

_LOGGER = logging.getLogger(__name__)


@dataclass(eq=False)
class PooledModel:
    """One model of the pool, and its state for reports."""

    bundle: InstalledBundle
    synthesizer: Synthesizer | None = None
    opening: "asyncio.Task[Synthesizer] | None" = None  # every request that comes waits for it
    load_s: float = 0.0  # seconds that opening took, the last time
    memory_bytes: int | None = None  # that opening took, about; None: the system does not tell
    num_users: int = 0
    last_used_s: float = 0.0
    error: str | None = None  # why the model cannot speak; None after a success
    speed: SpeedEstimate = field(default_factory=SpeedEstimate)

    @property
    def labels(self) -> tuple[str, str, str]:
        """Name of the model, device and precision."""
        manifest = self.bundle.manifest
        return manifest.name, manifest.device, manifest.recipe

    @property
    def is_loaded(self) -> bool:
        """Whether the model is open."""
        return self.synthesizer is not None


class ModelPool:
    """Synthesizers by bundle."""

    def __init__(
        self,
        num_threads: int,
        *,
        max_lanes: int,
        memory_limit_bytes: int | None = None,
        open_model: Callable[[InstalledBundle], SpeechModel] | None = None,
        bundles: list[InstalledBundle] | None = None,
    ) -> None:
        """Prepare an empty pool.

        A model that is larger than the limit is opened alone. ``bundles``, the server's models, are
        updated when a directory holds another bundle than before.
        """
        decoders = SharedDecoders()
        self._open_model = open_model or (
            lambda bundle: open_bundle(bundle.directory, num_threads, decoders)
        )
        self._max_lanes = max_lanes
        self._memory_limit_bytes = memory_limit_bytes
        self._bundles = [] if bundles is None else bundles
        self._models: dict[str, PooledModel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, bundle: InstalledBundle) -> AsyncIterator[tuple[Synthesizer, PooledModel]]:
        """Lend the bundle's synthesizer; open the model first if necessary.

        Raises:
            BundleError: The bundle cannot be opened.
        """
        model = self._models.setdefault(str(bundle.directory), PooledModel(bundle))
        if model.synthesizer and model.num_users == 0 and model.bundle != bundle:
            self._close(model)  # the bundle was replaced
        model.num_users += 1
        try:
            if (synthesizer := model.synthesizer) is None:
                if model.opening is None:
                    model.opening = asyncio.create_task(self._open(model))
                    # If every request that waits is cancelled, asyncio must not complain.
                    model.opening.add_done_callback(
                        lambda task: task.cancelled() or task.exception()
                    )
                # Shielded: if the client disconnects, the next one finds the model open.
                synthesizer = await asyncio.shield(model.opening)
            yield synthesizer, model
            model.error = None
        finally:
            model.num_users -= 1
            model.last_used_s = time.monotonic()
            # Models in use at the same time may exceed the limit.
            self._enforce_memory_limit()

    def record_error(self, bundle: InstalledBundle, error: Exception) -> None:
        """Record why a model cannot speak; a later success removes it."""
        if (model := self._models.get(str(bundle.directory))) is not None:
            model.error = str(error)

    def status(self) -> list[PooledModel]:
        """Return every model that was used."""
        return list(self._models.values())

    async def unload_idle(self, unused_s: float) -> int:
        """Close the models that were not used for ``unused_s`` seconds; return how many."""
        latest_s = time.monotonic() - unused_s
        closing = [
            self._close(model)
            for model in self._models.values()
            if model.synthesizer and model.num_users == 0 and model.last_used_s <= latest_s
        ]
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
        while True:
            bundle = model.bundle
            try:
                # In a thread: describe is answered and other models speak meanwhile.
                model.bundle = await asyncio.to_thread(read_bundle, bundle.directory)
                if model.bundle.manifest != bundle.manifest:
                    _LOGGER.info("%s was replaced", bundle.reference)
                    self._bundles[:] = [
                        model.bundle if known == bundle else known for known in self._bundles
                    ]
                return await asyncio.to_thread(self._open_model, model.bundle)
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
        total = sum(model.bundle.open_bytes for model in held)
        for model in sorted(idle, key=lambda model: model.last_used_s):
            # Never close the only one: it would be opened again for each request.
            if total <= self._memory_limit_bytes or total == model.bundle.open_bytes:
                return
            total -= model.bundle.open_bytes
            self._close(model)

    def _close(self, model: PooledModel) -> "asyncio.Task[None]":
        """Start to close a model, in a thread: freeing its memory takes a while."""
        holder = [model.synthesizer]
        model.synthesizer = None

        def free_memory() -> None:
            before_mb = (resident_memory_bytes() or 0) / 1e6
            holder.clear()
            gc.collect()
            trim_free_memory()
            after_mb = (resident_memory_bytes() or 0) / 1e6
            message = "Closed %s; memory went from %.0f MB to %.0f MB"
            _LOGGER.info(message, model.bundle.reference, before_mb, after_mb)

        task = asyncio.create_task(asyncio.to_thread(free_memory))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task
