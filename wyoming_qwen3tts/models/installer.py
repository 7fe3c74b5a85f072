"""The models of a server: those that are there, and those that are fetched or built meanwhile."""

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.engine.speed_record import SpeedRecord, choose
from wyoming_qwen3tts.errors import (
    BundleError,
    ModelNotReadyError,
    Qwen3TTSError,
    UnavailableError,
)
from wyoming_qwen3tts.models.bundles import (
    InstalledBundle,
    demo_voice_bundle,
    installed_bundles,
    outdated_bundles,
    restore_replaced,
)
from wyoming_qwen3tts.models.orders import (
    HubCheckpoint,
    Order,
    Wishes,
    rebuild_order,
    resolve,
)
from wyoming_qwen3tts.models.provision import Provisioner, ProvisionOptions
from wyoming_qwen3tts.models.provision_state import (
    BarReporter,
    CancelledError,
    LogReporter,
    ProvisionState,
    spell_duration,
)

_LOGGER = logging.getLogger(__name__)

# A hub that cannot be reached is asked again: a server may be up before its network is.
_FIRST_RETRY_S: Final = 30.0
_MAX_RETRY_S: Final = 600.0
_STOP_S: Final = 10.0


@dataclass
class _Delivery:
    """An order on its way; lives on the asyncio side but for the order itself."""

    order: Order
    placeholder: InstalledBundle | None
    """Stands for the bundle in the list of models; None while its voices are not known.

    It is one that can be used, where the order has a stand-in.
    """
    state: ProvisionState
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the bundle is there, or will not come."""
    is_there: bool = False


class Arrivals:
    """Carries out orders in a thread, and keeps the list of models up to date."""

    def __init__(
        self,
        models: Sequence[InstalledBundle | Order],
        data_dir: Path,
        options: ProvisionOptions,
        *,
        wait_s: float = 0.0,
        first_retry_s: float = _FIRST_RETRY_S,
    ) -> None:
        """Take orders; nothing is done before :meth:`working`.

        Args:
            models: Bundles and orders, most wanted first.
            data_dir: Where bundles are written to.
            options: How orders are carried out.
            wait_s: How long a request waits for a model that is on its way.
            first_retry_s: Wait before a hub that cannot be reached is asked again; it doubles.
        """
        self.bundles: list[InstalledBundle] = []
        """The models as they stand now; what is on its way is there by its expected voices."""
        self._deliveries: list[_Delivery] = []
        for model in models:
            bundle = (
                model.stand_in or model.expected_bundle() if isinstance(model, Order) else model
            )
            if bundle is not None:
                self.bundles.append(bundle)
            if isinstance(model, Order):
                state = ProvisionState(model.reference, "fetching", 0.0, None, "waiting")
                self._deliveries.append(_Delivery(model, bundle, state))
        self._data_dir = data_dir
        self._wait_s = wait_s
        self._first_retry_s = first_retry_s
        self._cancelled = threading.Event()
        self._provisioner = Provisioner(options, self._cancelled)
        self._news: asyncio.Queue[InstalledBundle | None] = asyncio.Queue()

    @property
    def states(self) -> list[ProvisionState]:
        """How far each order is."""
        return [delivery.state for delivery in self._deliveries]

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Carry out the orders while the context lasts; its end ends whatever is going on."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._work, args=(loop,), name="provisioning", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._cancelled.set()
            await asyncio.to_thread(thread.join, _STOP_S)

    async def arrived(self) -> AsyncIterator[InstalledBundle]:
        """Yield the bundles that arrive; ends when no more are to come."""
        while (bundle := await self._news.get()) is not None:
            yield bundle

    async def settle(self, bundle: InstalledBundle | None) -> bool:
        """See to it that a model can be used, waiting for it if that is allowed.

        Args:
            bundle: A model of :attr:`bundles`; None for all whose voices are not known yet.

        Returns:
            Whether it arrived only now, so that :attr:`bundles` has changed.

        Raises:
            ModelNotReadyError: It is still on its way, or will not come; the message says how far
                it is, or why.
        """
        waited = [
            delivery
            for delivery in self._deliveries
            if not delivery.is_there
            and delivery.order.stand_in is None
            and delivery.placeholder is bundle
        ]
        for delivery in waited:
            try:
                async with asyncio.timeout(self._wait_s):
                    await delivery.is_settled.wait()
            except TimeoutError:
                pass
            if not delivery.is_there:
                raise ModelNotReadyError(_explain(delivery.state))
        return bool(waited)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Carry out the orders; runs in the thread."""
        pending, retry_s = list(self._deliveries), self._first_retry_s
        try:
            with suppress(OSError):  # a directory that cannot be written is no reason to stop
                self._provisioner.finish_clean_up(self._data_dir)
            while pending:
                postponed: list[_Delivery] = []
                wait_s = 0.0
                for index, delivery in enumerate(pending):
                    later = [*pending[index + 1 :], *postponed]
                    delay_s = self._deliver(delivery, later, retry_s, loop)
                    if delay_s is not None:
                        postponed.append(delivery)
                        wait_s = max(wait_s, delay_s)
                pending = postponed
                if pending and self._cancelled.wait(wait_s):
                    return
                retry_s = min(2 * retry_s, _MAX_RETRY_S)
        except CancelledError:
            return
        _tell(loop, self._news.put_nowait, None)

    def _deliver(
        self,
        delivery: _Delivery,
        later: Sequence[_Delivery],
        retry_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> float | None:
        """Carry out one order; returns the seconds before it is worth trying again, if it is."""
        order = delivery.order
        log, bar = LogReporter(), BarReporter() if sys.stderr.isatty() else None

        def report(state: ProvisionState) -> None:
            log(state)
            if bar is not None:
                bar(state)
            _tell(loop, setattr, delivery, "state", state)

        def give_up(message: str) -> None:
            state = ProvisionState(order.reference, "failed", 0.0, None, message)
            _tell(loop, setattr, delivery, "state", state)

        try:
            bundle = self._provisioner.provide(order, report, keep_shared=_share(order, later))
        except UnavailableError as error:
            delay_s = max(retry_s, error.retry_after_s or 0.0)
            give_up(f"{error} The next attempt is in {spell_duration(delay_s)}.")
            _LOGGER.info("The next attempt is in %s", spell_duration(delay_s))
            return delay_s
        except Qwen3TTSError as error:
            give_up(str(error))
            _tell(loop, delivery.is_settled.set)
        except CancelledError:
            raise
        except Exception as error:  # whatever befalls one model, the others must come
            _LOGGER.exception("Unexpected failure while %s was made ready", order.reference)
            give_up(f"Unexpected failure: {error}.")
            _tell(loop, delivery.is_settled.set)
        else:
            _tell(loop, self._put, delivery, bundle)
        finally:
            if bar is not None:
                bar.close()
        return None

    def _put(self, delivery: _Delivery, bundle: InstalledBundle) -> None:
        """Put a bundle that arrived into the list, in the place that was kept for it."""
        for index, known in enumerate(self.bundles):
            if known is delivery.placeholder:
                self.bundles[index] = bundle
                break
        else:
            self.bundles.append(bundle)
        delivery.is_there = True
        delivery.is_settled.set()
        self._news.put_nowait(bundle)


def served_models(
    references: Sequence[str], wishes: Wishes, data_dirs: Sequence[Path]
) -> list[InstalledBundle | Order]:
    """Return what a server serves: the named models, or those that are there, or the demo.

    Raises:
        ConfigError: Nothing of a name is known.
        BundleError: A bundle that was named cannot be used.
    """
    for data_dir in data_dirs:
        restore_replaced(data_dir)
    if references:
        return [resolve(reference, wishes, data_dirs) for reference in references]
    found: list[InstalledBundle | Order] = [*_one_of_each(wishes, data_dirs)]
    for outdated in outdated_bundles(data_dirs):
        try:
            found.append(rebuild_order(outdated, data_dirs[0]))
        except BundleError as error:
            _LOGGER.warning("Left out: %s", error)
    return found or [demo_voice_bundle()]


def installed_models(data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return what a server without further wishes serves of what is installed, or the demo."""
    return _one_of_each(Wishes(), data_dirs) or [demo_voice_bundle()]


def _one_of_each(wishes: Wishes, data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return one bundle of each installed model: the wished one, else the fitting one.

    One that is damaged is nobody's choice, unless there is no other.
    """
    by_model: dict[str, list[InstalledBundle]] = {}
    for bundle in installed_bundles(data_dirs):
        if not bundle.is_embedded:
            by_model.setdefault(str(bundle.directory.parent), []).append(bundle)
    record = SpeedRecord(data_dirs[0])
    chosen = []
    for bundles in by_model.values():
        fitting = [bundle for bundle in bundles if wishes.fit(bundle.manifest)] or bundles
        damaged = [bundle for bundle in fitting if bundle.damage() is not None]
        if damaged and len(damaged) < len(fitting):
            _LOGGER.warning("%s; it is left out", damaged[0].damage())
            fitting = [bundle for bundle in fitting if bundle not in damaged]
        chosen.append(choose(fitting, record))
    return chosen


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Call something in the loop's thread; nobody is told when the server has stopped."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


def _share(order: Order, later: Sequence[_Delivery]) -> bool:
    """Whether a later order needs files of this one."""
    kinds = [type(delivery.order.source) for delivery in later]
    return type(order.source) is HubCheckpoint and HubCheckpoint in kinds


def _explain(state: ProvisionState) -> str:
    if state.state == "failed":
        return f"{state.model} is not ready: {state.message}"
    return f"{state.model} is not ready yet: {state.describe()}."
