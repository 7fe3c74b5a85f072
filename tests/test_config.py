import argparse
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyoming_qwen3tts import config as server_config
from wyoming_qwen3tts.config import ServerConfig, load_config, read_file, render_example
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.settings import build_section, list_settings

EXAMPLE = Path(__file__).parents[1] / "config" / "server.example.yaml"
SETTINGS = list(list_settings(ServerConfig))


def from_flags(*flags: str, environment: dict[str, str] | None = None) -> ServerConfig:
    parser = argparse.ArgumentParser(exit_on_error=False)
    server_config.add_flags(parser)
    return load_config(parser.parse_args(flags), environment or {})


def from_yaml(tmp_path: Path, text: str) -> ServerConfig:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return from_flags("--config", str(path))


def other_value(known):
    """Return a value that is not the default, as YAML has it and as a text."""
    if known.choices:
        return known.choices[-1], known.choices[-1]
    if known.kind is bool:
        return not known.default, str(not known.default)
    if known.kind is int:
        number = 7 + int(known.minimum or 0)
        return number, str(number)
    if known.kind is float:
        return 0.5, "0.5"
    if known.kind is tuple:
        return ("a", "b"), "a, b"
    return "other", "other"


def test_without_a_word_everything_is_default():
    assert from_flags() == ServerConfig()
    assert ServerConfig().uri == "tcp://0.0.0.0:10200"


def test_example_is_complete_and_holds_the_defaults(tmp_path):
    assert EXAMPLE.read_text() == render_example(), (
        "run: python -m wyoming_qwen3tts.config > config/server.example.yaml"
    )
    values = read_file(EXAMPLE)
    assert set(values) == {known.path for known in SETTINGS}
    assert build_section(ServerConfig, values) == ServerConfig()


@pytest.mark.parametrize("known", SETTINGS, ids=lambda known: ".".join(known.path))
def test_each_setting_is_read_from_file_environment_and_flag(known, tmp_path):
    value, text = other_value(known)
    assert value != known.default
    expected = build_section(ServerConfig, {known.path: value})
    assert expected != ServerConfig()

    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(known.path)]
    lines[-1] += f" {list(value) if isinstance(value, tuple) else text}"
    assert from_yaml(tmp_path, "\n".join(lines)) == expected

    variable = server_config.variable_name(known)
    assert from_flags(environment={variable: text}) == expected

    flag = server_config.flag_name(known)
    if known.kind is bool:
        flags = [flag if value else flag.replace("--", "--no-")]
    elif known.kind is tuple:
        flags = [flag, "a", flag, "b"]
    else:
        flags = [flag, text]
    assert from_flags(*flags) == expected


def test_flag_beats_environment_beats_file(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("voice: file\nseed: 1\nlimits: {max_errors: 5}")
    environment = {
        "WYOMING_QWEN3TTS_CONFIG": str(path),
        "WYOMING_QWEN3TTS_VOICE": "environment",
        "WYOMING_QWEN3TTS_SEED": "2",
    }
    config = from_flags("--voice", "flag", environment=environment)
    assert (config.voice, config.seed, config.limits.max_errors) == ("flag", 2, 5)
    assert config.limits.max_connections == ServerConfig().limits.max_connections


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vocie: ryan", "unknown setting vocie; did you mean voice?"),
        (
            "limits: {max_conections: 3}",
            "limits.max_conections; did you mean limits.max_connections?",
        ),
        ("sampling: {max_errors: 3}", "unknown setting sampling.max_errors; did you mean"),
        ("zzzzz: 1", "unknown setting zzzzz"),
        ("3: 1", "unknown setting 3"),
        ("hold_bak: 1", "unknown setting hold_bak; did you mean hold_back?"),
        (
            "threads: two\nhold_bak: 1\nzzzzz: 1\nlimits: {max_conections: 3}",
            "server.yaml: unknown settings hold_bak (did you mean hold_back?), zzzzz, "
            "limits.max_conections (did you mean limits.max_connections?)",
        ),
        ("threads: two", "threads must be a whole number, not 'two'"),
        ("threads: 1.5", "threads must be a whole number, not 1.5"),
        ("threads: true", "threads must be a whole number, not True"),
        ("threads: -1", "threads must be at least 0, not -1"),
        ("sampling: {top_p: 2}", "sampling.top_p must be at most 1, not 2"),
        ("sampling: {temperature: .nan}", "sampling.temperature must be a number, not nan"),
        ("sampling: 3", "sampling must hold keys and values, not 3"),
        ("debug: 'yes'", "debug must be true or false, not 'yes'"),
        ("uri: null", "uri must be a text, not None"),
        ("model: [1]", "model must be a list of texts, not [1]"),
        (
            "device: cudda",
            "device must be one of cpu, cuda, openvino, not 'cudda'; did you mean cuda?",
        ),
        ("- voice", "the file must hold keys and values"),
        ("voice: [", "is no YAML"),
    ],
)
def test_wrong_file_is_refused_with_the_path_of_the_key(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        from_yaml(tmp_path, text)
    assert message in str(caught.value)
    assert "server.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml cannot be read"):
        from_flags("--config", str(tmp_path / "absent.yaml"))


def test_empty_file_is_fine(tmp_path):
    assert from_yaml(tmp_path, "") == from_yaml(tmp_path, "limits:") == ServerConfig()


def test_wrong_variable_is_named():
    with pytest.raises(ConfigError, match="WYOMING_QWEN3TTS_THREADS must be a whole number"):
        from_flags(environment={"WYOMING_QWEN3TTS_THREADS": "many"})


def test_unknown_variable_is_a_warning_because_kubernetes_makes_such(caplog):
    environment = {"WYOMING_QWEN3TTS_VOCIE": "ryan", "WYOMING_QWEN3TTS_SERVICE_HOST": "10.0.0.1"}
    assert from_flags(environment=environment) == ServerConfig()
    assert "did you mean WYOMING_QWEN3TTS_VOICE?" in caplog.text


@pytest.mark.parametrize(
    ("flags", "zeroconf"),
    [
        ((), None),
        (("--zeroconf",), "auto"),
        (("--zeroconf", "kitchen"), "kitchen"),
        (("--zeroconf", "off"), None),
    ],
)
def test_zeroconf_is_a_switch_or_a_name(flags, zeroconf):
    assert from_flags(*flags).zeroconf == zeroconf


@pytest.mark.parametrize(
    ("text", "zeroconf"),
    [("false", None), ("off", None), ("true", "auto"), ("null", None), ("kitchen", "kitchen")],
)
def test_zeroconf_in_a_file(tmp_path, text, zeroconf):
    assert from_yaml(tmp_path, f"zeroconf: {text}").zeroconf == zeroconf


def test_one_model_needs_no_list(tmp_path):
    assert from_yaml(tmp_path, "model: a/b").model == ("a/b",)


def test_none_takes_a_choice_of_the_environment_back():
    assert from_flags("--voice", "none", environment={"WYOMING_QWEN3TTS_VOICE": "x"}).voice is None


def test_every_setting_says_what_it_is_for():
    assert all(known.doc.endswith(".") for known in SETTINGS)
    for known in SETTINGS:
        if known.kind is float and known.path[0] != "sampling":
            assert "econds" in known.doc


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerConfig().uri = "x"


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_subnormal=False)
    | st.text()
    | st.lists(st.text())
)


@given(st.sampled_from(SETTINGS), VALUES)
def test_any_value_is_taken_as_it_is_or_refused(known, value):
    try:
        checked = known.check(value, "it")
    except ConfigError:
        return
    assert checked is None or isinstance(checked, known.kind)
    assert known.check(checked, "it") == checked
