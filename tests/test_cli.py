import shutil
import subprocess
import sys
import types

import pytest

from wyoming_qwen3tts import __version__, app, cli
from wyoming_qwen3tts.errors import BundleError, ConfigError

pytestmark = pytest.mark.usefixtures("root_logger")


@pytest.fixture
def served(monkeypatch):
    """Replace serving by taking note of the settings."""
    configs = []
    monkeypatch.setattr(app, "serve", configs.append)
    return configs


@pytest.fixture
def command(monkeypatch):
    """Replace the command "say" by a scripted module."""
    module = types.ModuleType("scripted_command")
    module.add_arguments = lambda parser: parser.add_argument("text")
    module.run = lambda arguments, config: len(arguments.text)
    monkeypatch.setitem(sys.modules, "scripted_command", module)
    monkeypatch.setitem(cli.COMMANDS, "say", ("scripted_command", "say something"))
    return module


def test_serves_without_a_command(served):
    assert cli.main(["--uri", "tcp://127.0.0.1:1", "--voice", "ryan", "--no-streaming"]) == 0
    (config,) = served
    assert (config.uri, config.voice, config.streaming) == ("tcp://127.0.0.1:1", "ryan", False)


def test_command_gets_its_arguments(command, served):
    assert cli.main(["say", "hello"]) == 5
    assert not served


@pytest.mark.parametrize("source", ["environment", "file"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["status"], "tiny-0.6b-custom_voice"),
        (["models", "list"], "tiny-0.6b-custom_voice"),
        (["voices"], "tiny-0.6b-custom_voice"),
        (["voice", "list"], "grandpa"),
    ],
)
def test_every_command_reads_the_settings_of_the_server(
    arguments, expected, source, tiny_bundle, tmp_path, monkeypatch, capsys
):
    bundle = tiny_bundle("0.6B-custom_voice")
    shutil.copytree(bundle, tmp_path / bundle.parent.name / bundle.name)
    voice = tmp_path / "voices" / "en" / "grandpa"
    voice.mkdir(parents=True)
    (voice / "instruct.txt").write_text("An old man.")
    if source == "file":
        (tmp_path / "server.yaml").write_text(f"data_dirs: {tmp_path}\nvoice: ryan")
        arguments = [*arguments, "--config", str(tmp_path / "server.yaml")]
    else:
        monkeypatch.setenv("WYOMING_QWEN3TTS_DATA_DIRS", str(tmp_path))
    assert cli.main(arguments) == 0
    assert expected in capsys.readouterr().out


def test_command_may_bring_a_debug_flag_of_its_own(command):
    command.add_arguments = lambda parser: parser.add_argument("--debug", action="store_true")
    command.run = lambda arguments, config: int(arguments.debug)
    assert cli.main(["say", "--debug"]) == 1


def test_command_whose_package_is_missing_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "build", ("no_such_package.cli", "build"))
    assert cli.main(["build", "checkpoint"]) == 1
    assert "wyoming-qwen3tts[build]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sya", "hello"], "unknown command 'sya' (did you mean say?)"),
        (["dance"], "unknown command 'dance'; there are build, health, models, say"),
        (["--debug", "say", "hello"], "the command comes first: wyoming-qwen3tts say"),
        (["--voise", "ryan"], "unknown flag --voise (did you mean --voice?)"),
        (["--voi", "ryan"], "unknown flag --voi"),
        (["--uri"], "expected one argument"),
    ],
)
def test_wrong_command_line_is_explained_and_exits_2(arguments, message, capsys, served):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not served


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "int5"], "--precision must be one of auto, fp32, int8, int4, not 'int5'"),
        (["--threads", "many"], "--threads must be a whole number, not 'many'"),
        (["--threads", "-1"], "--threads must be at least 0"),
    ],
)
def test_wrong_value_of_a_flag_is_explained_and_exits_1(arguments, message, capsys, served):
    assert cli.main(arguments) == 1
    assert f"error: {message}" in capsys.readouterr().err
    assert not served


def test_error_is_one_line_and_exit_code_1(monkeypatch, capsys):
    def fail(_config):
        raise BundleError("the bundle is damaged; build it again")

    monkeypatch.setattr(app, "serve", fail)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "error: the bundle is damaged; build it again\n"


def test_traceback_only_with_debug(command, capsys):
    def fail(_arguments, _config):
        raise ConfigError("no such voice")

    command.add_arguments = lambda _parser: None
    command.run = fail
    assert cli.main(["say"]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert cli.main(["say", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: no such voice\n")


def test_failure_of_the_system_names_no_file_where_there_is_none(monkeypatch, capsys):
    def fail(_config):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(app, "serve", fail)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "error: Address already in use\n"


def test_wrong_settings_file_exits_1(tmp_path, capsys, served):
    path = tmp_path / "server.yaml"
    path.write_text("vocie: ryan")
    assert cli.main(["--config", str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert not served


def test_help_lists_commands_and_flags(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for word in (*cli.COMMANDS, "--uri", "--voice", "--model", "--data-dir", "--zeroconf"):
        assert word in out


def test_module_runs_as_program():
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "wyoming_qwen3tts", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert result.stdout.strip() == __version__
