"""Installs the models of a server one after the other, each in a child process."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, cast

from wyoming_qwen3tts.errors import ModelNotReadyError
from wyoming_qwen3tts.models.bundles import InstalledBundle, intact_bundle
from wyoming_qwen3tts.models.install import InstallJob
from wyoming_qwen3tts.models.progress import (
    InstallProgress,
    LogReporter,
    Report,
    parse_progress,
    spell_duration,
)
from wyoming_qwen3tts.models.references import BuildRequest

_LOGGER = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 5.0
_MAX_RETRY_S: Final = 600.0
_STOP_S: Final = 1.5
_MAX_LINE_BYTES: Final = 1 << 20
_KILLED: Final = (
    "The build was killed, most likely for lack of memory; close other programs, or build on "
    "another machine and copy the bundle."
)


async def run_install(job: InstallJob, report: Report) -> InstallProgress:
    """Run a job in a child process; return its last progress, "ready" or "failed".

    Every progress is reported, the last one included. Cancelling ends the child.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wyoming_qwen3tts.models.install", job.to_json()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_MAX_LINE_BYTES,
    )
    last_line, progress = "it printed nothing", None
    try:
        async for line in cast("asyncio.StreamReader", process.stdout):
            text = line.decode(errors="replace").rstrip()
            progress = parse_progress(text)
            if progress is None:
                last_line = text
                _LOGGER.info("%s", text)
            elif not progress.is_over:
                report(progress)
        code = await process.wait()
    finally:
        await _end(process)
    if progress is None or not progress.is_over:
        message, retry_s = f"The build ended with status {code}: {last_line}", None
        if code < 0:
            message, retry_s = _KILLED, 0.0
        progress = InstallProgress(job.request.reference, "failed", 0.0, None, message, retry_s)
    report(progress)
    return progress


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the child process at once, politely at first."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@dataclass
class _Job:
    request: BuildRequest
    expected_bundle: InstalledBundle | None
    """Entry in the list of models until the bundle is there; None while its voices are unknown."""
    progress: InstallProgress
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the bundle is there, or will not come."""
    is_ready: bool = False


class ModelInstaller:
    """Carries out build requests, and keeps the list of models up to date."""

    def __init__(
        self,
        models: Sequence[InstalledBundle | BuildRequest],
        *,
        wait_s: float = 0.0,
        local_files_only: bool = False,
        keep_checkpoint: bool = False,
    ) -> None:
        """Take the models, most wanted first; nothing happens before :meth:`running`.

        A client's request waits ``wait_s`` for a model that is being installed.
        """
        self.bundles: list[InstalledBundle] = []
        """The models, those that are not ready yet by their expected voices."""
        self._jobs: list[_Job] = []
        for model in models:
            if isinstance(model, InstalledBundle):
                self.bundles.append(model)
                continue
            bundle = model.fallback or model.expected_bundle()
            self._jobs.append(
                _Job(model, bundle, InstallProgress(model.reference, "fetching", 0.0, None))
            )
            if bundle is not None:
                self.bundles.append(bundle)
        self._wait_s = wait_s
        self._options = {"local_files_only": local_files_only, "keep_checkpoint": keep_checkpoint}
        self._one_at_a_time = asyncio.Lock()
        self._installed: asyncio.Queue[InstalledBundle | None] = asyncio.Queue()

    @property
    def progress(self) -> list[InstallProgress]:
        """Progress of each request."""
        return [job.progress for job in self._jobs]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Install while the context lasts; its end stops an installation at once."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def installed(self) -> AsyncIterator[InstalledBundle]:
        """Yield the bundles as they become ready; ends when no more are to come."""
        while (bundle := await self._installed.get()) is not None:
            yield bundle

    async def ensure_ready(self, bundle: InstalledBundle | None) -> bool:
        """Wait for a model of :attr:`bundles`; None means all with voices that are unknown yet.

        Returns whether :attr:`bundles` has changed meanwhile.

        Raises:
            ModelNotReadyError: It is still being installed, or cannot be; the message says why.
        """
        waited = [
            job
            for job in self._jobs
            if not job.is_ready and job.request.fallback is None and job.expected_bundle is bundle
        ]
        for job in waited:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await job.is_settled.wait()
            if not job.is_ready:
                progress = job.progress
                yet = "" if progress.state == "failed" else " yet"
                raise ModelNotReadyError(
                    f"{progress.model} is not ready{yet}: {progress.describe().rstrip('.')}."
                )
        return bool(waited)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for job in self._jobs:
                tasks.create_task(self._run_job(job))
        self._installed.put_nowait(None)

    async def _run_job(self, job: _Job) -> None:
        """Install a model; try again what may work later."""
        log, min_retry_s = LogReporter(), _FIRST_RETRY_S
        install_job = InstallJob(job.request, **self._options)

        def report(progress: InstallProgress) -> None:
            job.progress = progress
            log(progress)

        while True:
            async with self._one_at_a_time:
                try:
                    progress = await run_install(install_job, report)
                except OSError as error:  # the child cannot be started now
                    progress = replace(job.progress, state="failed", message=f"{error}.", retry_s=0)
                bundle = await asyncio.to_thread(intact_bundle, job.request.target)
            if progress.state == "ready" and bundle is not None:
                self.bundles[:] = [
                    bundle if known is job.expected_bundle else known for known in self.bundles
                ]
                if bundle not in self.bundles:
                    self.bundles.append(bundle)
                job.is_ready = True
                self._installed.put_nowait(bundle)
            elif progress.state == "ready":
                job.progress = replace(progress, state="failed", message="It is damaged again.")
            if progress.retry_s is None:
                job.is_settled.set()
                return
            delay_s = max(min_retry_s, progress.retry_s)
            next_attempt = f"The next attempt is in {spell_duration(delay_s)}."
            _LOGGER.info("%s: %s", progress.model, next_attempt)
            job.progress = replace(progress, message=f"{progress.message} {next_attempt}")
            await asyncio.sleep(delay_s)
            min_retry_s = min(2 * min_retry_s, _MAX_RETRY_S)
