"""Every way in which a transfer can fail, against the stand-in hub."""

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.support.hub import COMMIT, LISTING, Repository
from tests.support.hub_fixtures import use_endpoint
from wyoming_qwen3tts.errors import DownloadError, UnavailableError
from wyoming_qwen3tts.models import download
from wyoming_qwen3tts.models.checkpoints import (
    downloaded_repos,
    remove_checkpoint,
    repo_directory,
)
from wyoming_qwen3tts.models.download import Downloader
from wyoming_qwen3tts.models.registry import CheckpointFile

REPO, OTHER = "owner/model", "owner/sibling"
BIG, SMALL = "weights/model.safetensors", "config.json"
PATHS = [SMALL, BIG]
CONTENT = {SMALL: b'{"small": true}', BIG: bytes(range(256)) * 1600}
HASHES = {path: hashlib.sha256(content).hexdigest() for path, content in CONTENT.items()}
KNOWN = [CheckpointFile(path, len(CONTENT[path]), HASHES[path]) for path in CONTENT]
NOWHERE = "http://127.0.0.1:9"


class Scene:
    """A data directory, and a hub with two repositories of the same files."""

    def __init__(self, hub, data_dir: Path) -> None:
        self.hub = hub
        for repo in (REPO, OTHER):
            hub.repositories[repo] = Repository(dict(CONTENT))
        self.data_dir = data_dir
        self.progress: list[float] = []

    def fetch(self, paths=PATHS, repo=REPO, revision="main", offline=False, **options) -> Path:
        self.progress = []
        downloader = Downloader(self.data_dir, self.progress.append, local_files_only=offline)
        return downloader.fetch(repo, revision, paths, **options)

    def check(self, directory: Path) -> None:
        for path, content in CONTENT.items():
            assert (directory / path).read_bytes() == content
        assert not list(self.data_dir.rglob("*.part"))

    @property
    def target(self) -> Path:
        return repo_directory(self.data_dir, REPO) / "snapshots" / COMMIT / BIG

    @property
    def part(self) -> Path:
        part = self.target.with_name(f"{self.target.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        return part

    def ranges(self) -> list[str | None]:
        return [request.range for request in self.hub.gets(BIG)]


@pytest.fixture
def scene(hub, tmp_path):
    return Scene(hub, tmp_path / "data")


@pytest.mark.parametrize("known", [(), KNOWN], ids=["plain", "known"])
def test_files_arrive(scene, known):
    directory = scene.fetch(known=known)
    scene.check(directory)
    assert directory == repo_directory(scene.data_dir, REPO) / "snapshots" / COMMIT
    assert scene.progress[-1] == 1.0
    assert scene.progress == sorted(scene.progress)


@pytest.mark.parametrize("offline", [True, False])
def test_with_everything_there_the_network_is_left_alone(scene, offline):
    scene.fetch()
    scene.hub.requests.clear()
    scene.check(scene.fetch(revision="main" if offline else COMMIT, offline=offline))
    assert scene.hub.requests == []


def test_removing_the_last_checkpoint_removes_the_store(scene):
    scene.fetch()
    second = scene.fetch(repo=OTHER)
    remove_checkpoint(scene.data_dir, REPO)
    scene.check(second)
    remove_checkpoint(scene.data_dir, OTHER)
    assert downloaded_repos(scene.data_dir) == []
    assert not any(scene.data_dir.iterdir())


def test_connection_that_breaks_continues_where_it_stopped(scene, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    scene.hub.fail(BIG, cut=True, after_bytes=102_400)
    scene.hub.fail(BIG, stall_s=1.0, after_bytes=50_000)
    scene.hub.fail(BIG, reset=True, after_bytes=50_000)
    with pytest.raises(UnavailableError, match="cannot be downloaded"):
        scene.fetch()
    scene.check(scene.fetch())
    starts = [0 if each is None else int(each[6:-1]) for each in scene.ranges()]
    assert starts[0] == 0
    assert starts[1] > 90_000
    assert starts == sorted(starts)
    assert scene.hub.bytes_sent < 1.3 * sum(map(len, CONTENT.values()))


def test_an_interrupted_file_is_continued_by_the_next_run(scene):
    scene.part.write_bytes(CONTENT[BIG][:300_000])
    scene.check(scene.fetch())
    assert scene.ranges() == ["bytes=300000-"]


@pytest.mark.parametrize("rest", [b"", b"too much"], ids=["whole", "too long"])
def test_part_that_is_complete_already(scene, rest):
    scene.part.write_bytes(CONTENT[BIG] + rest)
    scene.check(scene.fetch())
    assert len(scene.ranges()) == (1 if rest else 0)


def test_damaged_part_of_an_earlier_run_is_downloaded_again(scene, caplog):
    scene.part.write_bytes(b"\0" * 300_000)
    scene.check(scene.fetch())
    assert scene.ranges() == ["bytes=300000-", None]
    assert f"{BIG} of {REPO} is damaged" in caplog.text


def test_server_that_cannot_continue_in_the_middle(scene):
    scene.hub.fail(BIG, cut=True, after_bytes=100_000)
    scene.hub.fail(BIG, ignore_range=True)
    scene.check(scene.fetch())


def test_damaged_bytes_are_named_and_downloaded_again(scene, caplog):
    scene.hub.fail(BIG, flip=True)
    scene.hub.fail(SMALL, flip=True)
    scene.check(scene.fetch())
    assert f"{BIG} of {REPO} is damaged" in caplog.text
    assert f"{SMALL} of {REPO} is damaged" in caplog.text


def test_bytes_that_stay_damaged_are_an_error(scene):
    scene.hub.fail(BIG, flip=True, times=-1)
    with pytest.raises(DownloadError, match=r"arrived damaged 2 times; a mirror or proxy"):
        scene.fetch()
    assert not scene.part.exists()
    scene.hub.faults.clear()
    scene.check(scene.fetch())


def test_the_start_of_a_hash_is_enough_to_refuse(scene):
    start = HASHES[SMALL][:16]
    scene.fetch([SMALL], known=[replace(KNOWN[0], sha256=start)])
    with pytest.raises(DownloadError, match="arrived damaged"):
        scene.fetch([SMALL], repo=OTHER, known=[replace(KNOWN[0], sha256="0" + start[1:])])


STATUSES = [
    (401, {"X-Error-Code": "GatedRepo"}, "accept them on"),
    (403, {"X-Error-Code": "GatedRepo"}, "accept them on"),
    (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "your token"),
    (403, {}, "does not exist on .* or is private"),
    (404, {"X-Error-Code": "RepoNotFound"}, "does not exist on .* or is private"),
    (404, {"X-Error-Code": "RevisionNotFound"}, "has no revision"),
    (404, {"X-Error-Code": "EntryNotFound"}, "has no file"),
    (410, {}, "refuses .* with status 410"),
]


@pytest.mark.parametrize("path", [LISTING, BIG])
@pytest.mark.parametrize(("status", "headers", "message"), STATUSES)
def test_refusal_is_one_sentence_and_not_repeated(scene, path, status, headers, message):
    scene.hub.fail(path, status=status, headers=headers)
    with pytest.raises(DownloadError, match=message) as caught:
        scene.fetch()
    assert not isinstance(caught.value, UnavailableError)
    assert "\n" not in str(caught.value)
    scene.check(scene.fetch())


@pytest.mark.parametrize("path", [LISTING, BIG])
@pytest.mark.parametrize("status", [429, 503])
def test_busy_hub_is_used_later(scene, path, status):
    scene.hub.fail(path, status=status, headers={"Retry-After": "7"}, times=-1)
    with pytest.raises(UnavailableError, match=rf"\(status {status}\)") as caught:
        scene.fetch()
    assert caught.value.retry_after_s == 7
    scene.hub.faults.clear()
    scene.hub.requests.clear()
    scene.check(scene.fetch())
    assert len(scene.hub.gets(SMALL)) == (path == LISTING)


def test_silence_is_named(scene, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    scene.hub.fail(BIG, stall_s=0.5, times=-1)
    with pytest.raises(UnavailableError, match=r"weights/.* cannot be downloaded"):
        scene.fetch()


def test_no_network_is_named(scene, monkeypatch):
    use_endpoint(monkeypatch, NOWHERE)
    with pytest.raises(UnavailableError, match=r"from http://127\.0\.0\.1:9 .* HF_ENDPOINT"):
        scene.fetch()


def test_a_page_instead_of_the_hub_is_named(scene, monkeypatch):
    scene.hub.fail(LISTING, status=200)
    with pytest.raises(DownloadError, match="does not answer as a model hub"):
        scene.fetch()


def test_proxy_that_does_not_exist_is_named(scene, fresh_client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    with pytest.raises(UnavailableError, match="HTTPS_PROXY"):
        scene.fetch()


def test_proxy_is_used(scene, fresh_client, monkeypatch):
    """The stand-in accepts what a proxy receives: an absolute address."""
    monkeypatch.setenv("HTTP_PROXY", scene.hub.endpoint)
    use_endpoint(monkeypatch, "http://hub.invalid")
    scene.fetch([SMALL])
    assert scene.hub.gets(SMALL)


PASSWORD = "let-me-in"  # noqa: S105 - of the stand-in


def test_token_goes_to_the_hub_only(scene, monkeypatch):
    scene.hub.repositories[REPO].token = PASSWORD
    with pytest.raises(DownloadError, match=r"does not exist on .* or is private"):
        scene.fetch()
    monkeypatch.setenv("HF_TOKEN", PASSWORD)
    scene.hub.requests.clear()
    scene.check(scene.fetch())
    for request in scene.hub.requests:
        assert (request.authorization == f"Bearer {PASSWORD}") == (request.server == "hub")


def test_gated_repository_says_what_to_accept(scene):
    scene.hub.repositories[REPO].token = PASSWORD
    scene.hub.repositories[REPO].is_gated = True
    with pytest.raises(DownloadError, match=f"accept them on {scene.hub.endpoint}/{REPO}"):
        scene.fetch()


def test_repository_that_does_not_exist(scene):
    with pytest.raises(DownloadError, match="nobody/nothing does not exist"):
        scene.fetch(repo="nobody/nothing")


def test_name_that_is_not_a_repository(scene):
    with pytest.raises(DownloadError, match="is not the name of a repository"):
        scene.fetch(repo="--/..")


@pytest.mark.parametrize("path", ["../../../escape", "/etc/passwd", "a/../../b", "a\\..\\b", ""])
def test_file_names_that_lead_out_of_the_checkpoint_are_refused(scene, path):
    """B19: names come from manifests and listings of other people."""
    scene.hub.repositories[REPO].files[path] = b"{}"
    with pytest.raises(DownloadError, match="is not allowed in a repository"):
        scene.fetch([path])
    assert not scene.data_dir.exists()


HOSTILE = [
    {"size": -1},
    {"size": None},
    {"size": "1"},
    {"size": 1e3},
    {"rfilename": None},
    {"lfs": {"size": 1, "sha256": "../../x", "pointerSize": 1}},
    {"lfs": {"size": 1}},
    {"lfs": [1]},
    {"blobId": 7, "lfs": None},
]


@pytest.mark.parametrize("entry", HOSTILE, ids=str)
def test_hostile_listing_is_refused(scene, entry):
    """B19: sizes and hashes come from a hub, which may be a mirror."""
    scene.hub.repositories[REPO].listing = lambda files: [{**file, **entry} for file in files]
    if "rfilename" in entry:
        scene.hub.repositories[REPO].listing = lambda files: [{"size": 1} for _ in files]
    with pytest.raises(DownloadError, match="does not answer as a model hub"):
        scene.fetch()
    assert scene.hub.gets() == []


@pytest.mark.parametrize("listing", ["text", 5, {"a": 1}, [1], [None]], ids=str)
def test_listing_that_is_none_is_refused(scene, listing):
    scene.hub.repositories[REPO].listing = lambda _files: listing
    with pytest.raises(DownloadError, match=r"does not answer as a model hub|has no file"):
        scene.fetch()


def test_listing_of_a_size_that_fits_no_disk(scene):
    scene.hub.repositories[REPO].listing = lambda files: [{**f, "size": 10**18} for f in files]
    with pytest.raises(DownloadError, match="MB free"):
        scene.fetch()
    assert scene.hub.gets() == []


def test_file_that_is_longer_than_announced_fills_no_disk(scene):
    """A server that never ends would write until the disk is full."""
    scene.hub.repositories[REPO].listing = lambda files: [{**f, "size": 10} for f in files]
    with pytest.raises(DownloadError, match="longer than the 10 bytes"):
        scene.fetch()
    assert all(path.stat().st_size <= 64 for path in scene.data_dir.rglob("*") if path.is_file())


@pytest.mark.parametrize("switch", ["flag", "environment"])
def test_offline_with_something_missing(scene, monkeypatch, switch):
    scene.fetch([SMALL])
    scene.hub.requests.clear()
    if switch == "environment":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match=f"{REPO} is not completely on this machine"):
        scene.fetch(offline=switch == "flag")
    assert scene.hub.requests == []


def test_branch_that_moved_is_downloaded_again(scene):
    old = scene.fetch()
    scene.hub.repositories[REPO].commit = "f" * 40
    assert scene.fetch() != old
    assert len(scene.hub.gets(BIG)) == 2


def cache_file(repo: str, path: str, content: bytes) -> Path:
    """Put a file into huggingface_hub's own cache."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    pointer = folder / "snapshots" / COMMIT / path
    for each in (blob, pointer, folder / "refs" / "main"):
        each.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    (folder / "refs" / "main").write_text(COMMIT)
    return blob


def test_checkpoint_in_the_users_cache_is_used_in_place(scene):
    blobs = [cache_file(REPO, path, content) for path, content in CONTENT.items()]
    scene.check(scene.fetch(known=KNOWN, offline=True))
    assert scene.hub.requests == []
    remove_checkpoint(scene.data_dir, REPO)
    assert all(blob.is_file() for blob in blobs)


def test_checkpoint_of_an_older_version_is_used(scene):
    """Older versions kept the files as hard links into blobs/."""
    blob = scene.data_dir / ".checkpoints" / "blobs" / HASHES[BIG]
    blob.parent.mkdir(parents=True)
    blob.write_bytes(CONTENT[BIG])
    scene.target.parent.mkdir(parents=True)
    scene.target.hardlink_to(blob)
    (scene.target.parents[1] / SMALL).write_bytes(CONTENT[SMALL])
    scene.check(scene.fetch(revision=COMMIT, known=KNOWN, offline=True))
    remove_checkpoint(scene.data_dir, REPO)
    assert not blob.exists()


def test_space_is_checked_before_the_first_byte(scene, monkeypatch):
    monkeypatch.setattr(download, "free_disk_bytes", lambda _path: 1_000_000)
    with pytest.raises(DownloadError, match="needs 0 MB and about 1 MB for the bundle"):
        scene.fetch(extra_share=3.0)
    assert scene.hub.gets() == []


def test_full_disk_is_named_and_what_came_is_kept(scene, monkeypatch):
    write = download._ReportedFile.write

    def limited(file, data):
        if file.tell() > 150_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(download._ReportedFile, "write", limited)
    with pytest.raises(DownloadError, match=r"The disk .* is full; .* the rest is kept"):
        scene.fetch()
    monkeypatch.undo()
    use_endpoint(monkeypatch, scene.hub.endpoint)
    scene.hub.requests.clear()
    scene.check(scene.fetch())
    assert scene.ranges()[0] is not None


def test_directory_that_cannot_be_written_is_named(scene):
    scene.data_dir.parent.mkdir(parents=True, exist_ok=True)
    scene.data_dir.write_text("in the way")
    with pytest.raises(OSError, match="Not a directory"):
        scene.fetch()
