"""A stand-in hub with tiny checkpoints, and huggingface_hub kept away from everything else."""

import asyncio
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import close_session, constants

from tests.support.hub import StandInHub, running_hub
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.commands import models as models_command
from wyoming_qwen3tts.models import download, installer, registry
from wyoming_qwen3tts.models.install import InstallJob, install
from wyoming_qwen3tts.models.progress import InstallProgress, Report

OWN = "someone/tiny"
"""A repository that the registry does not know."""
_ENVIRONMENT = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CHECKPOINT_PATHS = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
)


@pytest.fixture
def hub_client(monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> None:
    """Give huggingface_hub an empty cache, no token and no proxy, and us little patience."""
    for name in (*_ENVIRONMENT, *_PROXIES, *(name.lower() for name in _PROXIES)):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("hub-home")
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", constants.DOWNLOAD_CHUNK_SIZE)
    monkeypatch.setattr(download, "_CHUNK_BYTES", 4096)
    monkeypatch.setattr(download, "_PAUSES_S", ())
    impatient = SimpleNamespace(**{**vars(time), "sleep": lambda _seconds: None})
    for module in ("utils._http", "file_download"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", impatient)


@pytest.fixture
def fresh_client(hub_client) -> Iterator[None]:
    """Let huggingface_hub read the proxy settings again, which it does once for all requests."""
    close_session()
    yield
    close_session()


@pytest.fixture(scope="session")
def served_checkpoint(tmp_path_factory) -> Path:
    """Return the checkpoint that stands in for all published ones."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("served") / "checkpoint")


@pytest.fixture
def hub(served_checkpoint, hub_client, monkeypatch) -> Iterator[StandInHub]:
    """Return a running hub that this process and its children ask."""
    with running_hub() as running:
        running.add_directory(OWN, served_checkpoint)
        use_endpoint(monkeypatch, running.endpoint)
        yield running


def use_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let this process and its children ask another hub."""
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def tiny_catalogue(hub, served_checkpoint, monkeypatch):
    """Let the published models be tiny ones that the stand-in hub serves."""
    with tiny_models(monkeypatch, served_checkpoint):
        for model in registry.published_models():
            hub.add_directory(model.repo, served_checkpoint, commit=model.revision)
        yield


@pytest.fixture
def builds_here(monkeypatch):
    """Let installations run in this process: a child starts more slowly, and knows no patches."""

    async def run_install(job: InstallJob, report: Report) -> InstallProgress:
        found: list[InstallProgress] = []

        def collect(progress: InstallProgress) -> None:
            found.append(progress)
            report(progress)

        await asyncio.to_thread(install, job, collect)
        return found[-1]

    monkeypatch.setattr(installer, "run_install", run_install)
    monkeypatch.setattr(models_command, "run_install", run_install)


@contextmanager
def tiny_models(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> Iterator[None]:
    """Let the registry have the sizes and hashes of a tiny checkpoint."""
    real = registry._read()

    def entry(path: str) -> dict[str, object]:
        content = (checkpoint / path).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        return {"path": path, "bytes": len(content), "sha256": digest}

    def tiny(files: list[dict[str, object]]) -> list[dict[str, object]]:
        return [entry(str(file["path"])) for file in files]

    models = [{**model, "files": tiny(model["files"])} for model in real["models"]]
    values = {**real, "shared_files": tiny(real["shared_files"]), "models": models}
    monkeypatch.setattr(registry, "_read", lambda: values)
    cached = registry.published_models
    cached.cache_clear()
    yield
    cached.cache_clear()


def child_environment(hub: StandInHub, home: Path) -> dict[str, str]:
    """Return the environment of a process that uses the stand-in hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper() not in (*_ENVIRONMENT, *_PROXIES)
    }
    return {**kept, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home)}
