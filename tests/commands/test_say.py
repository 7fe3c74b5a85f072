"""``say`` speaks as the server does."""

import io
import json
import shutil
import sys
import wave

import pytest
import soundfile

from tests.conftest import NUM_THREADS
from tests.support.voice_fixtures import TRANSCRIPT, clip_bytes
from wyoming_qwen3tts import cli
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder

pytestmark = pytest.mark.usefixtures("root_logger")


@pytest.fixture
def say(tmp_path, tiny_bundle, capsys, monkeypatch):
    """Return a function: arguments of ``say`` -> (exit code, output, errors)."""
    for name in ("0.6B-custom_voice", "0.6B-base", "1.7B-voice_design"):
        source = tiny_bundle(name)
        shutil.copytree(source, tmp_path / "data" / source.parent.name / source.name)
    monkeypatch.setenv("WYOMING_QWEN3TTS_DATA_DIRS", str(tmp_path / "data"))
    monkeypatch.setenv("WYOMING_QWEN3TTS_THREADS", str(NUM_THREADS))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = cli.main(["say", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run


def audio_of(path):
    with wave.open(str(path)) as wav:
        assert (wav.getnchannels(), wav.getsampwidth(), wav.getframerate()) == (1, 2, 24_000)
        return wav.readframes(wav.getnframes())


def test_wav_file_and_measurements(say, tmp_path):
    code, out, _ = say("Hello there.", "--voice", "ryan", "--seed", 1, "--output", "hello.wav")
    assert code == 0
    assert "hello.wav: " in out
    audio = audio_of(tmp_path / "hello.wav")
    code, out, _ = say("Hello there.", "--voice", "ryan", "--seed", 1, "--json")
    assert audio_of(tmp_path / "speech.wav") == audio
    values = json.loads(out)
    assert (values["voice"], values["seed"]) == ("ryan", 1)
    assert values["audio_s"] == pytest.approx(len(audio) / 48_000)
    assert 0 < values["first_audio_s"] <= values["synthesis_s"]


def test_pipe_gets_raw_audio_alone(say, monkeypatch, tmp_path):
    class Pipe(io.TextIOWrapper):
        pass

    buffer = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Pipe(buffer, write_through=True))
        assert cli.main(["say", "Hello.", "--voice", "ryan", "--seed", "1", "--output", "-"]) == 0
        raw = buffer.getvalue()
    say("Hello.", "--voice", "ryan", "--seed", 1)
    assert audio_of(tmp_path / "speech.wav") == raw


def test_model_is_named_as_for_the_server(say):
    for name in ("tiny-0.6b-custom_voice", "tiny-0.6b-custom_voice/cpu_fp32"):
        assert say("Hello.", "--model", name)[0] == 0


def test_greedy_is_repeatable_without_a_seed(say, tmp_path):
    heard = []
    for _ in range(2):
        assert say("Hello there.", "--voice", "ryan", "--greedy")[0] == 0
        heard.append(audio_of(tmp_path / "speech.wav"))
    assert heard[0] == heard[1]


def test_described_voice(say):
    arguments = ("--model", "tiny-1.7b-voice_design", "--instruct", "A warm voice.")
    assert say("Hello there.", *arguments)[0] == 0


def test_reference_clip_is_cloned(say, tmp_path):
    clip = tmp_path / "clip.wav"
    clip.write_bytes(clip_bytes())
    for text in ([], ["--reference-text", TRANSCRIPT]):
        assert say("Hello there.", "--reference", clip, *text)[0] == 0
    assert not (tmp_path / "data" / "voices").exists()


@pytest.mark.parametrize("text", ["...", "", " \n"])
@pytest.mark.parametrize("exact", [[], ["--exact"]])
def test_text_with_nothing_to_say_succeeds_with_silence(say, text, exact, tmp_path):
    code, out, _ = say(text, "--voice", "ryan", *exact)
    assert code == 0
    assert "speech.wav: 0.10 s of audio" in out
    assert set(audio_of(tmp_path / "speech.wav")) == {0}


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        (".wav", ("WAV", "PCM_16")),
        (".FLAC", ("FLAC", "PCM_16")),
        (".mp3", ("MP3", "MPEG_LAYER_III")),
        (".ogg", ("OGG", "VORBIS")),
        (".opus", ("OGG", "OPUS")),
    ],
)
def test_suffix_decides_the_format(say, suffix, kind, tmp_path):
    path = tmp_path / f"hello{suffix}"
    code, out, _ = say("Hello there.", "--voice", "ryan", "--seed", 1, "--output", path, "--json")
    assert code == 0
    with soundfile.SoundFile(path) as file:
        assert (file.format, file.subtype) == kind
        assert (file.samplerate, file.channels) == (24_000, 1)
        # An MP3 is a whole number of frames, with a delay at its beginning.
        assert file.frames / 24_000 == pytest.approx(json.loads(out)["audio_s"], abs=0.15)


def test_metadata_is_written_beside_the_audio(say, tmp_path):
    code, out, _ = say("Hello.", "--voice", "ryan", "--output", "hello.flac", "--metadata")
    assert code == 0
    assert "hello.flac: " in out
    values = json.loads((tmp_path / "hello.json").read_text())
    assert (values["voice"], values["output"]) == ("ryan", "hello.flac")
    assert values["audio_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "spoken"),
    [([], ["twenty-two.", "And then."]), (["--exact"], ["22.\nAnd *then*."])],
)
def test_exact_gives_the_model_the_text_as_it_is(say, arguments, spoken, monkeypatch):
    texts = []
    build = PromptBuilder.build

    def record(self, text, *rest):
        texts.append(text)
        return build(self, text, *rest)

    monkeypatch.setattr(PromptBuilder, "build", record)
    assert say("22.\nAnd *then*.", "--voice", "ryan", "--language", "en", *arguments)[0] == 0
    assert texts == spoken


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--voice", "cedar"], "Unknown voice 'cedar'"),
        (["--language", "klingon"], "Unknown language 'klingon'"),
        (["--reference-text", "Hello."], "--reference-text needs --reference"),
        (["--reference", "no.wav"], "no.wav"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--output", "speech.m4a"], "speech.m4a must end with one of .wav, .flac, .mp3"),
        (["--output", "-", "--metadata"], "--metadata needs a file"),
    ],
)
def test_what_cannot_be_said_leaves_no_file(say, arguments, message, tmp_path):
    code, _, err = say("Hello.", *arguments)
    assert code == 1
    assert message in err
    assert not [path for path in tmp_path.iterdir() if path.name != "data"]


def test_dry_run_prints_what_would_be_spoken(say, tmp_path):
    code, out, _ = say("# Heute\n\nEs sind 21 °C. Der Timer läuft noch 0:05:30.", "--dry-run")
    assert code == 0
    assert out.splitlines() == [
        "de: Heute.",
        "de: Es sind einundzwanzig Grad Celsius.",
        "de: Der Timer läuft noch fünf Minuten dreißig Sekunden.",
    ]
    assert not list(tmp_path.glob("*.wav"))
