import asyncio
import json
import shutil

import pytest

from tests.support.fakes import VOICES, FakeSpeechSource
from wyoming_qwen3tts import cli
from wyoming_qwen3tts.models import registry as model_catalogue
from wyoming_qwen3tts.models.checkpoints import downloaded_repos, repo_directory
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener

CUSTOM_VOICE = "qwen3-tts-0.6b-customvoice"


@pytest.fixture
def models(tmp_path, hub, capsys):
    """Return a function: arguments of ``models`` -> (exit code, what it printed)."""

    def run(action: str, *arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        data_dir = tmp_path / "data"
        code = cli.main(["models", action, *arguments, "--data-dir", str(data_dir)])
        out, err = capsys.readouterr()
        return code, out + err

    return run


@pytest.fixture
def store(tmp_path):
    return lambda: downloaded_repos(tmp_path / "data")


@pytest.fixture
def installed(tmp_path, tiny_bundle):
    """Return a bundle that is in the data directory."""
    source = tiny_bundle("0.6B-custom_voice")
    target = tmp_path / "data" / source.parent.name / source.name
    return shutil.copytree(source, target)


def test_list_shows_what_there_is_and_what_is_here(models, installed):
    code, text = models("list")
    assert code == 0
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.startswith("qwen3-tts-1.7b-voicedesign - - 4520 MB") for line in lines)
    assert any(line.startswith("tiny-0.6b-custom_voice cpu_fp32") for line in lines)
    code, text = models("list", "--json")
    values = json.loads(text)
    by_name = {row["model"]: row for row in values["models"]}
    assert by_name[CUSTOM_VOICE]["download_bytes"] == 2_498_383_173
    assert by_name["tiny-0.6b-custom_voice"]["bundles"].keys() == {"cpu_fp32"}
    assert values["states"] == []


def add_voice(data_dir, name, **files):
    folder = data_dir / "voices" / "en" / name
    folder.mkdir(parents=True)
    for stem, text in files.items():
        (folder / f"{stem}.txt").write_text(text)


def test_list_shows_voices_and_problems(models, installed, tiny_bundle, tmp_path):
    data_dir = tmp_path / "data"
    shutil.copytree(tiny_bundle("1.7B-voice_design"), data_dir / "design" / "cpu_fp32")
    (data_dir / "design" / "cpu_fp32" / "vocab.json").unlink()
    (data_dir / "other" / "cpu_int8").mkdir(parents=True)
    (data_dir / "other" / "cpu_int8" / "manifest.json").write_text("{")
    add_voice(data_dir, "gran", instruct="An old lady with a bright voice.")
    add_voice(data_dir, "nobody")
    code, text = models("list", "--json")
    report, _ = json.JSONDecoder().raw_decode(text)  # warnings come after it
    assert code == 0
    (bundle,) = next(row for row in report["models"] if row["model"] == "tiny-0.6b-custom_voice")[
        "bundles"
    ].values()
    assert bundle["precision"] == "fp32"
    assert bundle["disk_bytes"] > bundle["weights_bytes"] > 0
    assert bundle["problem"] is report["server"] is None
    assert (report["num_library_voices"], report["num_voices"] > 9) == (1, True)
    for words in ("vocab.json is missing", "manifest.json", "voice nobody"):
        assert any(words in problem for problem in report["problems"])
    text = models("list")[1]
    assert text.count("PROBLEM  ") == 3
    assert "of them 1 in the library" in text


def test_status_is_the_same_and_changes_nothing(tmp_path, capsys):
    assert cli.main(["status", "--data-dir", str(tmp_path)]) == 0
    assert "Voices: 0" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


async def test_a_running_server_is_asked(tmp_path, capsys):
    async with Listener("tcp://127.0.0.1:0", ConnectionOptions(FakeSpeechSource())) as listener:
        uri = f"tcp://127.0.0.1:{listener.port}"
        arguments = ["status", "--data-dir", str(tmp_path), "--uri", uri]
        assert await asyncio.to_thread(cli.main, arguments) == 0
    text = capsys.readouterr().out
    assert f"Server {uri}: " in text
    assert f"{len(VOICES)} voices" in text
    assert await asyncio.to_thread(cli.main, arguments) == 1
    assert "does not answer (" in capsys.readouterr().out


def test_fetch_check_build_and_remove(models, hub, builds_here, tiny_catalogue, store, tmp_path):
    code, text = models("fetch", CUSTOM_VOICE)
    repo = model_catalogue.find_model(CUSTOM_VOICE).repo
    assert (code, store()) == (0, [repo])
    assert str(repo_directory(tmp_path / "data", repo)) in text
    assert models("check", CUSTOM_VOICE)[0] == 0
    hub.requests.clear()
    code, text = models("build", CUSTOM_VOICE, "--precision", "int4", "--local-files-only")
    assert code == 0
    assert hub.requests == []
    directory = tmp_path / "data" / "qwen3-tts-12hz-0.6b-customvoice" / "cpu_int4"
    assert str(directory) in text
    assert store() == []
    assert "is installed already" in models("build", CUSTOM_VOICE)[1]
    code, text = models("check")
    assert code == 0
    assert "damaged or missing: 0" in text
    assert models("remove", CUSTOM_VOICE)[0] == 0
    assert not directory.parent.exists()


def test_check_names_what_is_damaged(models, installed):
    weights = installed / "talker.onnx.data"
    content = bytearray(weights.read_bytes())
    content[10] ^= 1
    weights.write_bytes(content)
    (installed / "merges.txt").unlink()
    code, text = models("check")
    assert code == 1
    assert f"{weights} is damaged" in text
    assert "merges.txt is missing" in text
    assert "damaged or missing: 2" in text


def test_remove_takes_one_variant_or_all(models, installed):
    other = shutil.copytree(installed, installed.with_name("cpu_int4"))
    assert models("remove", "tiny-0.6b-custom_voice/cpu_int4")[0] == 0
    assert not other.exists()
    assert installed.exists()
    assert models("remove", "tiny-0.6b-custom_voice")[0] == 0
    assert not installed.parent.exists()


def test_remove_of_nothing_is_an_error(models):
    code, text = models("remove", "nothing")
    assert code == 1
    assert "'nothing' is not installed" in text


def test_unknown_name_is_explained(models):
    code, text = models("fetch", "qwen3-tts-0.6b-custom")
    assert code == 1
    assert f"did you mean {CUSTOM_VOICE}?" in text
