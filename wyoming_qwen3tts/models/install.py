"""Installs one model: downloads it, builds the bundle, puts it in place.

``python -m wyoming_qwen3tts.models.install JOB`` does so as a child process, whose memory returns
to the system. It prints progress as lines of JSON, has a low priority, and ends with its parent.
"""

import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wyoming_qwen3tts.errors import (
    BuildError,
    DownloadError,
    Qwen3TTSError,
    UnavailableError,
    is_out_of_memory,
)
from wyoming_qwen3tts.files import atomic_directory, atomic_write, leftovers
from wyoming_qwen3tts.machine import available_memory_bytes
from wyoming_qwen3tts.models.checkpoints import (
    data_lock,
    link_or_copy,
    remove_checkpoint,
)
from wyoming_qwen3tts.models.progress import EtaEstimator, InstallProgress, Report, State
from wyoming_qwen3tts.models.references import PRECISIONS, BuildRequest
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from wyoming_qwen3tts.models.download import Downloader

_LOGGER = logging.getLogger(__name__)

_MEGABYTE: Final = 1_000_000
# Measured with the smallest models; a build that is killed for lack of memory is tried again.
_BUILD_BYTES: Final = 320 * _MEGABYTE
# Size of a bundle over that of its checkpoint, on the high side.
_BUNDLE_SHARE: Final = {"fp32": 1.75, "int8": 0.65, "int4": 0.55}
_NICENESS: Final = 10
# Time to leave nothing incomplete; the next build removes the rest.
_GRACE_S: Final = 2.0
_STDIN: Final = 0
_SMALL_FILES: Final = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
)
"""Files of a checkpoint that an onnx-community bundle lacks."""
_CHECKPOINT_FILES: Final = (
    *_SMALL_FILES,
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
    "model.safetensors",
)
_ENCODERS: Final = {"tok_encoder", "speaker_encoder"}
"""Graphs of an onnx-community bundle that only cloning needs."""
_UNUSED_GRAPH: Final = "talker"


@dataclass(frozen=True)
class InstallJob:
    """A request, and how to carry it out."""

    request: BuildRequest
    fetch_only: bool = False
    local_files_only: bool = False
    keep_checkpoint: bool = False

    def to_json(self) -> str:
        """Return the job as a command-line argument."""
        request = replace(self.request, fallback=None)
        return json.dumps(asdict(replace(self, request=request)), default=str)

    @classmethod
    def from_json(cls, text: str) -> "InstallJob":
        """Parse the argument."""
        values: dict[str, Any] = json.loads(text)
        request = values.pop("request")
        for name in ("data_dir", "checkpoint"):
            request[name] = request[name] and Path(request[name])
        return cls(BuildRequest(**request), **values)


def install(job: InstallJob, report: Report) -> None:
    """Carry out a job; the last report is "ready" or "failed", whatever happens."""
    request, retry_s = job.request, None
    state: State = "failed"
    try:
        with data_lock(request.data_dir):
            message = _install(job, report)
        state = "ready"
    except UnavailableError as error:
        message, retry_s = str(error), error.retry_after_s or 0.0
    except Qwen3TTSError as error:
        message = str(error)
    except OSError as error:
        where, reason = error.filename or request.data_dir, error.strerror
        message = f"{where}: {reason}; fix its permissions, or choose another --data-dir."
    except Exception as error:  # other models must still be installed
        _LOGGER.exception("Unexpected failure")
        message = f"Unexpected failure: {error!r}."
        retry_s = 0.0 if is_out_of_memory(error) else None
    fraction = 1.0 if state == "ready" else 0.0
    report(InstallProgress(request.reference, state, fraction, None, message, retry_s))


def _install(job: InstallJob, report: Report) -> str:
    request = job.request
    for folder in request.data_dir.glob("*/"):
        for path in leftovers(folder):  # by killed builds
            shutil.rmtree(path, ignore_errors=True)
    if job.fetch_only:
        return str(_fetch(job, EtaEstimator(request.reference, "fetching", report))[0].parent)
    installed = request.installed()
    if installed is not None and not installed.is_outdated:
        return "is installed already"
    if not request.is_ready_made:
        _check_build(request)
    files = _fetch(job, EtaEstimator(request.reference, "fetching", report))
    if request.is_ready_made:
        with atomic_directory(request.target) as directory:
            for path in files:
                link_or_copy(path, directory / path.name)
    else:
        _build(request, files[0].parent, EtaEstimator(request.reference, "building", report))
    if request.repo is not None and not job.keep_checkpoint:
        remove_checkpoint(request.data_dir, request.repo)
        if request.is_ready_made and request.model is not None:
            remove_checkpoint(request.data_dir, request.model.repo)
    return "ready"


def _fetch(job: InstallJob, eta: EtaEstimator) -> list[Path]:
    """Return the files that the bundle is made of, the checkpoint's config.json first."""
    request = job.request
    if request.checkpoint is not None:
        return [request.checkpoint / "config.json"]
    # Imported here: a local checkpoint needs no hub.
    from wyoming_qwen3tts.models.download import Downloader

    downloader = Downloader(request.data_dir, eta.advance, local_files_only=job.local_files_only)
    if request.is_ready_made:
        return _fetch_ready_made(request, downloader)
    directory = downloader.fetch(
        request.repo or "",
        request.revision,
        _CHECKPOINT_FILES,
        known=request.model.files if request.model else (),
        extra_share=0.0 if job.fetch_only else _BUNDLE_SHARE[request.precision],
    )
    return [directory / path for path in _CHECKPOINT_FILES]


def _fetch_ready_made(request: BuildRequest, downloader: "Downloader") -> list[Path]:
    """Return the files of an onnx-community bundle, and the small ones of its checkpoint."""
    repo, variant, model = request.repo or "", request.variant, request.model
    manifest_path = f"{variant}/{MANIFEST_NAME}"
    directory = downloader.fetch(repo, request.revision, [manifest_path])
    try:
        manifest = json.loads((directory / manifest_path).read_text(encoding="utf-8"))
        source = model.repo if model else str(manifest["model_id"])
        graphs = {name: str(entry["filename"]) for name, entry in manifest["sub_models"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(
            f"{manifest_path} of {repo} is not that of an onnx-community bundle ({error!r})."
        ) from error
    revision, known = (model.revision, model.files) if model else ("main", ())
    small = downloader.fetch(source, revision, _SMALL_FILES, known=known)
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    can_clone = config.get("tts_model_type") == "base"
    skipped = {_UNUSED_GRAPH} if can_clone else {_UNUSED_GRAPH, *_ENCODERS}
    paths = [f"{variant}/{file}" for name, file in graphs.items() if name not in skipped]
    weights = [f"{path}.data" for path in paths]
    # Weights first: where a graph is complete, its weights are as well.
    wanted = [manifest_path, *(each for pair in zip(weights, paths, strict=True) for each in pair)]
    directory = downloader.fetch(repo, request.revision, wanted, optional=weights)
    found = [directory / path for path in wanted]
    return [*(small / path for path in _SMALL_FILES), *filter(Path.is_file, found)]


def _build(request: BuildRequest, checkpoint: Path, eta: EtaEstimator) -> None:
    # Imported here: it needs the build extra.
    from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
    from wyoming_qwen3tts.builder.recipe import uniform_recipe

    eta.advance(0.0)
    precision = next(each for each in PRECISIONS if each == request.precision)
    options = BuildOptions(recipe=uniform_recipe(precision), name=request.name, force=True)
    build_bundle(
        checkpoint,
        request.target,
        options,
        lambda _component, fraction: eta.advance(fraction),
    )


def _check_build(request: BuildRequest) -> None:
    """Check that a build can succeed, before gigabytes are downloaded."""
    try:
        import wyoming_qwen3tts.builder.build  # noqa: F401
    except ImportError as error:
        raise BuildError(
            "Building a model needs the build extra: pip install 'wyoming-qwen3tts[build]'"
        ) from error
    available = available_memory_bytes()
    if available is not None and available < _BUILD_BYTES:
        raise UnavailableError(
            f"Building {request.reference} needs about {_BUILD_BYTES // _MEGABYTE} MB "
            f"of memory, {available // _MEGABYTE} MB are free; close other programs, or build on "
            "another machine and copy the bundle."
        )


def _run_as_child(job: InstallJob) -> None:
    os.nice(_NICENESS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("wyoming_qwen3tts").setLevel(logging.INFO)
    # It repeats in other words what this module reports.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

    def report(progress: InstallProgress) -> None:
        print(progress.to_json(), flush=True)  # noqa: T201 - the parent reads it
        with suppress(OSError):  # a full disk must not stop anything
            atomic_write(job.request.progress_file, f"{progress.to_json()}\n")

    install(job, report)


def _stop_with_parent() -> None:
    """Stop when standard input ends, as it does with the parent."""
    while os.read(_STDIN, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    _run_as_child(InstallJob.from_json(sys.argv[1]))
