"""The opened models of a server: opened when needed, shared, unloaded under a memory limit."""

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wyoming_qwen3tts.engine.bundle_watch import BundleWatch, FileChange
from wyoming_qwen3tts.engine.file_lease import FileLease
from wyoming_qwen3tts.engine.model_usage import ModelUsage
from wyoming_qwen3tts.engine.pacing import Pace
from wyoming_qwen3tts.engine.speed_record import SpeedRecord
from wyoming_qwen3tts.errors import BundleError, Qwen3TTSError, is_out_of_memory
from wyoming_qwen3tts.machine import resident_memory_bytes, return_free_memory
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.runtime.bundle import SharedDecoders, open_bundle
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

_LOGGER = logging.getLogger(__name__)
_BYTES_PER_MB = 2**20
_GONE_S = 0.1


@dataclass
class _Slot:
    """One model's place in the pool."""

    bundle: InstalledBundle
    watch: BundleWatch
    synthesizer: Synthesizer | None = None
    opening: "asyncio.Task[Synthesizer] | None" = None
    """While the model is being opened, for all who wait for it."""
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
        num_threads: int,
        *,
        max_lanes: int,
        memory_limit_bytes: int | None = None,
        open_model: Callable[[InstalledBundle], SpeechModel] | None = None,
        on_loss: Callable[[Synthesizer, Qwen3TTSError], None] | None = None,
    ) -> None:
        """Prepare an empty pool.

        Args:
            num_threads: Size of the thread pool that all graphs share.
            max_lanes: Utterances that one model speaks side by side.
            memory_limit_bytes: Weights that may be open at once; None for no limit. A model that
                is larger than the limit is opened all the same, alone.
            open_model: Opens a bundle; tests give their own.
            on_loss: Called with a synthesizer that must not be used any more, and the reason.
        """
        self._decoders = SharedDecoders()
        self._open_model = open_model or (
            lambda bundle: open_bundle(bundle.directory, num_threads, self._decoders)
        )
        self._on_loss = on_loss
        self._max_lanes = max_lanes
        self._memory_limit_bytes = memory_limit_bytes
        self._slots: dict[str, _Slot] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, bundle: InstalledBundle) -> AsyncIterator[Synthesizer]:
        """Lend the bundle's synthesizer, opening the model first if it is not open.

        Raises:
            BundleError: The bundle cannot be opened.
        """
        key = str(bundle.directory)
        slot = self._slots.setdefault(key, _Slot(bundle, BundleWatch(bundle.directory)))
        slot.num_users += 1
        try:
            yield await self._opened(slot)
        except Exception as error:
            slot.usage.add_error(error)
            raise
        finally:
            slot.num_users -= 1
            slot.last_used_s = time.monotonic()
            # Those that were in use at once may be more than the limit allows.
            self._keep_limit()

    async def _opened(self, slot: _Slot) -> Synthesizer:
        """Return the slot's synthesizer, of files that are as they should."""
        await self._look_at_files(slot)
        if slot.synthesizer is not None:
            return slot.synthesizer
        if slot.opening is None:
            slot.opening = asyncio.create_task(self._open(slot))
            # Where nobody waits any more, nobody asks how it ended.
            slot.opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Shielded: if the client goes away meanwhile, the next one finds the model open.
        return await asyncio.shield(slot.opening)

    def pace(self, bundle: InstalledBundle) -> Pace:
        """Return how fast a model that is in use speaks; whoever speaks with it notes it there."""
        return self._slots[str(bundle.directory)].pace

    def usage(self, bundle: InstalledBundle) -> ModelUsage:
        """Return what a model that is in use has done; whoever speaks with it adds it there."""
        return self._slots[str(bundle.directory)].usage

    def record_speed(self, record: SpeedRecord) -> None:
        """Remember how fast the models that have spoken are on this machine."""
        for slot in self._slots.values():
            if slot.pace.alone_rtf is not None:
                record.note(slot.bundle, slot.pace.alone_rtf)

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

    def unload_idle(self, unused_s: float) -> int:
        """Close the models that nobody has used for ``unused_s`` seconds; return how many."""
        idle = [
            slot
            for slot in self._slots.values()
            if slot.synthesizer is not None
            and slot.num_users == 0
            and time.monotonic() - slot.last_used_s >= unused_s
        ]
        for slot in idle:
            self._unload(slot)
        return len(idle)

    async def check_files(self) -> None:
        """Close the models whose files were changed, and end what they are speaking."""
        for slot in tuple(self._slots.values()):
            await self._look_at_files(slot)

    async def _look_at_files(self, slot: _Slot) -> None:
        synthesizer = slot.synthesizer
        if synthesizer is None:
            return
        changes = await asyncio.to_thread(slot.watch.changes)
        if changes and slot.synthesizer is synthesizer:
            self._close_changed(slot, synthesizer, changes)

    def _close_changed(
        self, slot: _Slot, synthesizer: Synthesizer, changes: list[FileChange]
    ) -> None:
        # What is mapped stays whole if the file was only replaced: that speech may end in peace.
        worst = next((change for change in changes if change.is_in_place), changes[0])
        _LOGGER.error(
            "%s was changed while it was in use; %s is opened again for the next request",
            worst.path,
            slot.bundle.reference,
        )
        decoder = synthesizer.model.codec_decoder
        self._decoders.clear()
        for other in self._slots.values():
            # Models share the decoder, wherever its file lies.
            if other.synthesizer is None or other.synthesizer.model.codec_decoder is not decoder:
                continue
            if worst.is_in_place and self._on_loss is not None:
                error = BundleError(f"{worst.path} was changed while it was in use; try again.")
                self._on_loss(other.synthesizer, error)
            self._unload(other)

    async def _open(self, slot: _Slot) -> Synthesizer:
        self._keep_limit()
        started_s = time.perf_counter()
        before_bytes = resident_memory_bytes()
        try:
            model = await self._opened_model(slot)
        finally:
            slot.opening = None
        slot.synthesizer = Synthesizer(model, max_lanes=self._max_lanes)
        slot.last_used_s = time.monotonic()
        slot.load_s = time.perf_counter() - started_s
        after_bytes = resident_memory_bytes()
        if before_bytes is not None and after_bytes is not None:
            slot.memory_bytes = max(after_bytes - before_bytes, 0)
        _LOGGER.info("Opened %s in %.1f s", slot.bundle.reference, slot.load_s)
        return slot.synthesizer

    async def _opened_model(self, slot: _Slot) -> SpeechModel:
        while True:
            try:
                # In a thread of its own: describe and other models go on meanwhile.
                return await asyncio.to_thread(self._open_files, slot)
            except Exception as error:
                if is_out_of_memory(error):
                    if self.unload_idle(0.0):
                        continue
                    raise BundleError(
                        f"{slot.bundle.reference} cannot be opened: out of memory; close other "
                        "programs, or serve a smaller model or a lower precision."
                    ) from error
                if isinstance(error, Qwen3TTSError):
                    raise
                raise BundleError(
                    f"{slot.bundle.directory} cannot be opened: {error!r}."
                ) from error

    def _open_files(self, slot: _Slot) -> SpeechModel:
        try:
            slot.watch.mark(slot.bundle)
            return self._open_model(slot.bundle)
        except BaseException:
            # Whoever mends the files must not be held up.
            slot.watch.release(slot.watch.retire())
            raise

    def _keep_limit(self) -> None:
        """Close idle models, the one unused longest first, until the others fit into the limit."""
        if self._memory_limit_bytes is None:
            return
        # One that is being opened takes its room already.
        held = [
            slot
            for slot in self._slots.values()
            if slot.synthesizer is not None or slot.opening is not None
        ]
        idle = [slot for slot in held if slot.synthesizer is not None and slot.num_users == 0]
        total = sum(slot.num_bytes for slot in held)
        for slot in sorted(idle, key=lambda slot: slot.last_used_s):
            # One alone stays, whatever its size: it would be opened anew for each request.
            if total <= self._memory_limit_bytes or total == slot.num_bytes:
                return
            total -= slot.num_bytes
            self._unload(slot)

    def _unload(self, slot: _Slot) -> None:
        if slot.synthesizer is None:
            return
        before_bytes = resident_memory_bytes()
        model = weakref.ref(slot.synthesizer.model)
        slot.synthesizer = None
        return_free_memory()
        after_bytes = resident_memory_bytes()
        if before_bytes is None or after_bytes is None:
            _LOGGER.info("Closed %s", slot.bundle.reference)
        else:
            _LOGGER.info(
                "Closed %s; the server's memory went from %.0f MB to %.0f MB",
                slot.bundle.reference,
                before_bytes / _BYTES_PER_MB,
                after_bytes / _BYTES_PER_MB,
            )
        _LOGGER.info("%s", self._status(slot).describe())
        leases = slot.watch.retire()
        if model() is None:
            slot.watch.release(leases)
        else:
            self._closing.add(task := asyncio.create_task(_release(slot.watch, leases, model)))
            task.add_done_callback(self._closing.discard)


async def _release(
    watch: BundleWatch, leases: list[FileLease], model: weakref.ref[SpeechModel]
) -> None:
    """Let a bundle's files be changed once the last speech of its model has let go of them."""
    while model() is not None:
        await asyncio.sleep(_GONE_S)
        gc.collect()
    watch.release(leases)
