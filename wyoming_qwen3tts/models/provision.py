"""From an order to an installed bundle: fetched, built in a process of its own, put in place.

Whatever is cut short leaves nothing that is later trusted: files count once they are checked, a
bundle once it is whole, and the next attempt goes on with what was there.
"""

import json
import logging
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wyoming_qwen3tts.errors import BuildError, BundleError, Qwen3TTSError
from wyoming_qwen3tts.machine import available_memory_bytes
from wyoming_qwen3tts.models.build_process import check_builder, run_build
from wyoming_qwen3tts.models.bundles import InstalledBundle, read_bundle
from wyoming_qwen3tts.models.checkpoint_store import CheckpointStore, link_or_copy
from wyoming_qwen3tts.models.data_lock import data_lock, is_held
from wyoming_qwen3tts.models.orders import (
    WORK_NAME,
    HubCheckpoint,
    LocalCheckpoint,
    Order,
    PublishedBundle,
    checkpoint_id,
    resolve_installed,
)
from wyoming_qwen3tts.models.provision_state import (
    ProvisionState,
    Report,
    StageClock,
    StateFile,
    read_state,
)
from wyoming_qwen3tts.models.registry import Measured

if TYPE_CHECKING:
    from wyoming_qwen3tts.models.download import Fetcher
    from wyoming_qwen3tts.models.hub import HubOptions

_LOGGER = logging.getLogger(__name__)

_MEGABYTE: Final = 1_000_000
_WEIGHTS: Final = "model.safetensors"


@dataclass(frozen=True)
class ProvisionOptions:
    """How models are made ready."""

    local_files_only: bool = False
    """Never use the network."""
    keep_checkpoint: bool = False
    """Keep what was fetched after the bundle was built of it."""
    hub: "HubOptions | None" = None
    """How the hub is asked; None for the usual way."""


class Provisioner:
    """Carries out orders, one after the other; synchronous, for a thread of its own."""

    def __init__(self, options: ProvisionOptions, cancelled: threading.Event) -> None:
        """Prepare to work.

        Args:
            options: How.
            cancelled: Set by another thread to end whatever is going on.
        """
        self._options = options
        self._cancelled = cancelled

    def provide(
        self, order: Order, report: Report, *, keep_shared: bool = False
    ) -> InstalledBundle:
        """Make a bundle be there.

        Args:
            order: The bundle.
            report: Told how far it is.
            keep_shared: Keep files that other models need as well, since one of them comes next.

        Raises:
            DownloadError: It cannot be fetched.
            BuildError: It cannot be built.
            BundleError: It cannot be used.
            CancelledError: Nobody wants it any more.
        """
        states = StateFile(order.state_file)

        def tell(state: ProvisionState) -> None:
            states.write(state)
            report(state)

        try:
            with data_lock(
                order.data_dir / WORK_NAME,
                order.reference,
                lambda other: _report_wait(order, other, report),
                self._cancelled,
            ):
                bundle = _usable(order)
                if bundle is None:
                    bundle = self._make(order, tell)
                    self._clean_up(order, bundle, keep_shared=keep_shared)
        except Qwen3TTSError as error:
            tell(ProvisionState(order.reference, "failed", 0.0, None, str(error)))
            raise
        except OSError as error:
            message = (
                f"{error.filename or order.data_dir} cannot be written or read "
                f"({error.strerror}); mend it, or choose another --data-dir."
            )
            tell(ProvisionState(order.reference, "failed", 0.0, None, message))
            raise BuildError(message) from error
        tell(ProvisionState(order.reference, "ready", 1.0, None, "ready"))
        return bundle

    def fetch(self, order: Order, report: Report) -> list[Path]:
        """Fetch what an order needs, without building; returns the directory, or the files.

        Raises:
            DownloadError: It cannot be fetched.
            CancelledError: Nobody wants it any more.
        """
        with data_lock(
            order.data_dir / WORK_NAME,
            order.reference,
            lambda other: _report_wait(order, other, report),
            self._cancelled,
        ):
            return self._fetch(order, report)

    def finish_clean_up(self, data_dir: Path) -> None:
        """Remove the checkpoints of bundles whose builder was killed before it could do so."""
        work_dir = data_dir / WORK_NAME
        has_checkpoints = CheckpointStore(data_dir).root.is_dir()
        if self._options.keep_checkpoint or not has_checkpoints or is_held(work_dir):
            return
        with data_lock(work_dir, "cleaning up", lambda _other: None, self._cancelled):
            for path in work_dir.glob("*.json"):
                state = read_state(path)
                if state is None or state.is_over:
                    continue
                try:
                    bundle = read_bundle(data_dir / state.model)
                except BundleError:
                    continue
                _remove_checkpoints(data_dir, bundle.manifest.source.repo)
                CheckpointStore(data_dir).sweep(with_partial=False)
                StateFile(path).write(replace(state, state="ready", fraction=1.0, message="ready"))

    def _make(self, order: Order, tell: Report) -> InstalledBundle:
        if isinstance(order.source, PublishedBundle):
            _install(order, self._fetch(order, tell))
        else:
            check_builder()
            (checkpoint,) = self._fetch(order, tell)
            self._build(order, checkpoint, tell)
        return read_bundle(order.target)

    def _fetch(self, order: Order, tell: Report) -> list[Path]:
        source = order.source
        if isinstance(source, LocalCheckpoint):
            return [source.directory]
        # Imported here: a server whose models are there needs no hub.
        from wyoming_qwen3tts.models.wanted_files import fetch_checkpoint, fetch_published

        fetcher = self._fetcher(order, tell)
        if isinstance(source, PublishedBundle):
            return fetch_published(fetcher, source, order.variant)
        measured = _measured(order)
        needed = 0 if measured is None else measured.bundle_bytes
        return [fetch_checkpoint(fetcher, source, needed)]

    def _fetcher(self, order: Order, tell: Report) -> "Fetcher":
        from wyoming_qwen3tts.models.download import Fetcher
        from wyoming_qwen3tts.models.hub import HubOptions

        options = self._options.hub or HubOptions()
        if self._options.local_files_only:
            options = replace(options, local_files_only=True)
        clock = StageClock(order.reference, "fetching", tell)
        store = CheckpointStore(order.data_dir)
        return Fetcher(store, options, self._cancelled, clock.advance)

    def _build(self, order: Order, checkpoint: Path, tell: Report) -> None:
        _check_memory(order)
        arguments = [
            str(checkpoint),
            f"--output={order.target}",
            f"--name={order.name}",
            f"--precision={order.precision}",
            # An older format, or an older state of a local checkpoint, may be in its place.
            "--force",
        ]
        clock = StageClock(order.reference, "building", tell)
        clock.advance(0.0, "starting")
        run_build(arguments, clock.advance, self._cancelled)
        if isinstance(order.source, LocalCheckpoint):
            order.source_file.write_text(json.dumps(checkpoint_id(checkpoint)))

    def _clean_up(self, order: Order, bundle: InstalledBundle, *, keep_shared: bool) -> None:
        """Remove what the bundle was made of: it is enough."""
        if self._options.keep_checkpoint or isinstance(order.source, LocalCheckpoint):
            return
        _remove_checkpoints(order.data_dir, order.source.repo)
        if isinstance(order.source, PublishedBundle):
            # Of the checkpoint only small files were fetched, unless somebody wanted it whole.
            model = order.source.known.repo if order.source.known else bundle.manifest.source.repo
            _remove_checkpoints(order.data_dir, model, with_weights=False)
        if not keep_shared:
            freed = CheckpointStore(order.data_dir).sweep(with_partial=False)
            _LOGGER.debug("Removed %d MB of checkpoints", freed // _MEGABYTE)


def _remove_checkpoints(data_dir: Path, repo: str | None, *, with_weights: bool = True) -> None:
    store = CheckpointStore(data_dir)
    for snapshot in store.snapshots():
        if snapshot.repo == repo and (with_weights or _WEIGHTS not in snapshot.records):
            store.remove_snapshot(snapshot.repo, snapshot.revision)


def _usable(order: Order) -> InstalledBundle | None:
    """Return the bundle if somebody else made it meanwhile."""
    found = resolve_installed(order)
    if found is not None:
        _LOGGER.info("%s is there already", order.reference)
    return found


def _install(order: Order, files: list[Path]) -> None:
    """Put a fetched bundle of the published layout in place, as a whole."""
    half = order.target.with_name(f".{order.target.name}.installing")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    for path in files:
        link_or_copy(path, half / path.name, may_point=False)
    if order.target.exists():
        shutil.rmtree(order.target)
    half.rename(order.target)


def _measured(order: Order) -> Measured | None:
    """Return what a bundle was measured to need; None where nobody measured it."""
    known = order.source.known if isinstance(order.source, HubCheckpoint) else None
    return None if known is None else known.measured.get(order.variant)


def _check_memory(order: Order) -> None:
    measured, available = _measured(order), available_memory_bytes()
    if measured is None or available is None or available >= measured.build_peak_bytes:
        return
    raise BuildError(
        f"Building {order.reference} needs about {measured.build_peak_bytes // _MEGABYTE} MB of "
        f"memory, {available // _MEGABYTE} MB are free; close other programs, or build on another "
        "machine and copy the bundle."
    )


def _report_wait(order: Order, other: str, report: Report) -> None:
    """Say that another process works in the same data directory, and how far it is."""
    name, _, variant = other.rpartition("/")
    state = read_state(order.state_file.with_name(f"{name}--{variant}.json"))
    if state is not None and other == order.reference and not state.is_over:
        report(replace(state, message=f"{state.message} (by another process)"))
        return
    far = "" if state is None or state.is_over else f", {state.describe()}"
    message = f"waiting for another process that works on {other or 'a model'}{far}"
    report(ProvisionState(order.reference, "fetching", 0.0, None, message))
