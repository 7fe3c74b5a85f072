import argparse
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from script._tools.addon import EXAMPLE, render_example
from wyoming_qwen3tts.config import (
    OLD_NAMES,
    SETTINGS,
    Config,
    add_flags,
    flag_name,
    load_config,
    make_config,
    read_file,
    variable_name,
)
from wyoming_qwen3tts.errors import ConfigError


def from_flags(*flags: str, environment: dict[str, str] | None = None) -> Config:
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_flags(parser)
    return load_config(parser.parse_args(flags), environment or {})


def from_environment(**variables: str) -> Config:
    values = {f"WYOMING_QWEN3TTS_{name}": text for name, text in variables.items()}
    return from_flags(environment=values)


def from_yaml(tmp_path: Path, text: str) -> Config:
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
        return ("a", "b"), "a; b"
    if known.kind is dict:
        return {"a": "b, c"}, "a=b, c"
    return "other", "other"


def test_without_a_word_everything_is_default():
    assert from_flags() == Config()
    assert Config().uri == "tcp://0.0.0.0:10200"


def test_example_is_complete_and_holds_the_defaults():
    assert EXAMPLE.read_text() == render_example(), "run script/generate_addon"
    values = read_file(EXAMPLE)
    assert set(values) == set(SETTINGS)
    assert Config(**values) == Config()


@pytest.mark.parametrize("known", SETTINGS.values(), ids=lambda known: known.name)
def test_each_setting_is_read_from_file_environment_and_flag(known, tmp_path):
    value, text = other_value(known)
    assert value != known.default
    expected = Config(**{known.name: value})
    assert expected != Config()
    shown = list(value) if isinstance(value, tuple) else value if isinstance(value, dict) else text
    assert from_yaml(tmp_path, f"{known.name}: {shown}") == expected
    assert from_flags(environment={variable_name(known.name): text}) == expected
    flag = flag_name(known.name)
    if known.kind is bool:
        flags = [flag if value else flag.replace("--", "--no-")]
    elif known.kind is tuple:
        flags = [flag, "a", flag_name(known.item), "b"]
    else:
        flags = [flag, text]
    assert from_flags(*flags) == expected


def test_flag_beats_environment_beats_file(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("voice: file\nseed: 1\nmax_requests: 5")
    environment = {
        "WYOMING_QWEN3TTS_CONFIG": str(path),
        "WYOMING_QWEN3TTS_VOICE": "environment",
        "WYOMING_QWEN3TTS_SEED": "2",
    }
    config = from_flags("--voice", "flag", environment=environment)
    assert (config.voice, config.seed, config.max_requests) == ("flag", 2, 5)


# Lists.


@pytest.mark.parametrize("text", ["de,en", "de; en", '["de", "en"]', "[de, en]"])
def test_list_of_names_in_flag_and_environment_means_the_same(text):
    assert from_environment(LANGUAGES=text).languages == ("de", "en")
    assert from_flags("--language", text).languages == ("de", "en")


def test_repeated_flags_add_up():
    assert from_flags("--model", "a,b", "--model", "c").models == ("a", "b", "c")


def test_directories_may_hold_commas():
    assert from_environment(DATA_DIRS="/a,b;/c").data_dirs == ("/a,b", "/c")
    assert from_flags("--data-dir", "/a,b").data_dirs == ("/a,b",)


@pytest.mark.parametrize(
    "text", ["calm=Slowly, softly.;loud=Shout.", '{"calm": "Slowly, softly.", "loud": "Shout."}']
)
def test_styles_hold_commas_wherever_they_come_from(text, tmp_path):
    styles = {"calm": "Slowly, softly.", "loud": "Shout."}
    assert from_environment(STYLES=text).styles == styles
    assert from_flags("--styles", text).styles == styles
    flags = [f"--style={name}={instruction}" for name, instruction in styles.items()]
    assert from_flags(*flags).styles == styles
    assert from_yaml(tmp_path, f"styles: {styles}").styles == styles
    pairs = [f"{name}={instruction}" for name, instruction in styles.items()]
    assert from_yaml(tmp_path, f"styles: {pairs}").styles == styles


def test_style_without_instruction_is_refused():
    with pytest.raises(ConfigError, match="'calm' is not NAME=TEXT"):
        from_flags("--style", "calm")


# Wrong settings.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vocie: ryan", "unknown setting vocie (did you mean voice?)"),
        ("limits: {max_conections: 3}", "limits.max_conections (did you mean limits.max_con"),
        ("sampling: {max_errors: 3}", "unknown setting sampling.max_errors"),
        ("zzzzz: 1", "unknown setting zzzzz"),
        ("3: 1", "unknown setting 3"),
        (
            "threads: 2\nmax_prebufer: 1\nzzzzz: 1",
            "server.yaml: unknown settings max_prebufer (did you mean max_prebuffer?), zzzzz",
        ),
        ("threads: two", "threads must be a whole number, not 'two'"),
        ("threads: 1.5", "threads must be a whole number, not 1.5"),
        ("threads: true", "threads must be a whole number, not True"),
        ("threads: -1", "threads must be at least 0, not -1"),
        ("top_p: 2", "top_p must be at most 1, not 2"),
        ("sampling: {top_p: 2}", "sampling.top_p must be at most 1, not 2"),
        ("temperature: .nan", "temperature must be a number, not nan"),
        ("sampling: 3", "unknown setting sampling"),
        ("debug: 'yes'", "debug must be true or false, not 'yes'"),
        ("uri: null", "uri must be a text, not None"),
        ("models: [1]", "models must be a list of texts, not [1]"),
        ("styles: {a: 1}", "styles must be a mapping of NAME: TEXT, not {'a': 1}"),
        ("precision: int5", "precision must be one of auto, fp32, int8, int4, not 'int5' (did you"),
        ("- voice", "the file must hold keys and values"),
        ("voice: [", "is not valid YAML"),
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
    assert from_yaml(tmp_path, "") == from_yaml(tmp_path, "limits:") == Config()


def test_wrong_variable_is_named():
    with pytest.raises(ConfigError, match="WYOMING_QWEN3TTS_THREADS must be a whole number"):
        from_environment(THREADS="many")


def test_unknown_variable_is_a_warning_because_kubernetes_makes_such(caplog):
    assert from_environment(VOCIE="ryan", SERVICE_HOST="10.0.0.1") == Config()
    assert "WYOMING_QWEN3TTS_VOCIE (did you mean WYOMING_QWEN3TTS_VOICE?)" in caplog.text


# Names of the release before.


@pytest.mark.parametrize(
    ("old", "text", "expected"),
    [
        ("model", "a/b", {"models": ("a/b",)}),
        ("lanes", "2", {"parallel_utterances": 2}),
        ("memory_limit", "900", {"max_loaded_weights_mb": 900}),
        ("keep_as_written", "[dates, times]", {"disabled_text_rules": ("dates", "times")}),
        ("sampling.temperature", "0.5", {"temperature": 0.5}),
        ("limits.shutdown_timeout_s", "3", {"shutdown_timeout": 3.0}),
        ("text_mode", "tokens", {"text_mode": "continuous"}),
        ("device", "cpu", {}),
        ("limits.max_errors", "3", {}),
    ],
)
def test_old_name_works_with_a_warning(old, text, expected, tmp_path, caplog):
    *section, key = old.split(".")
    line = f"{section[0]}: {{{key}: {text}}}" if section else f"{key}: {text}"
    assert from_yaml(tmp_path, line) == Config(**expected)
    assert from_flags(environment={variable_name(old): text}) == Config(**expected)
    num_warnings = len(caplog.records)
    assert num_warnings == 2
    assert from_flags(flag_name(old), text) == Config(**expected)
    # --model is also the spelling of one entry of --models.
    assert len(caplog.records) == num_warnings + (old != "model")


def test_old_names_lead_somewhere():
    assert {new for new in OLD_NAMES.values() if new is not None} <= set(SETTINGS)
    assert not set(OLD_NAMES) & set(SETTINGS)


# Single settings.


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
    assert from_yaml(tmp_path, "models: a/b").models == ("a/b",)


def test_empty_options_of_the_app_are_defaults(tmp_path):
    text = "voice: ''\nmodels: ['']\nlanguages: ['', de]\nstyles: ['']\nzeroconf: ''"

    assert from_yaml(tmp_path, text) == Config(languages=("de",))


def test_without_a_home_directory_the_setting_is_named(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError

    monkeypatch.setattr("wyoming_qwen3tts.config._PACKAGE_ROOT", tmp_path)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert Config(data_dirs=("/data",)).data_paths == [Path("/data")]
    with pytest.raises(ConfigError, match="--data-dir"):
        _ = Config().data_paths


def test_none_takes_a_choice_of_the_environment_back():
    assert from_flags("--voice", "none", environment={"WYOMING_QWEN3TTS_VOICE": "x"}).voice is None


def test_every_setting_says_what_it_is_for():
    assert all(known.doc.endswith(".") for known in SETTINGS.values())
    for known in SETTINGS.values():
        if known.kind is float and known.name not in {"temperature", "top_p"}:
            assert "econds" in known.doc


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().uri = "x"


def test_settings_made_in_python_are_checked():
    assert make_config(models="a/b", threads=2) == Config(models=("a/b",), threads=2)
    with pytest.raises(ConfigError, match=r"unknown setting modles \(did you mean models\?\)"):
        make_config(modles="a")


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_subnormal=False)
    | st.text()
    | st.lists(st.text())
    | st.dictionaries(st.text(), st.text())
)


@given(st.sampled_from(list(SETTINGS.values())), VALUES)
def test_any_value_is_taken_as_it_is_or_refused(known, value):
    try:
        checked = known.check(value, "it")
    except ConfigError:
        return
    assert checked is None or isinstance(checked, known.kind)
    assert known.check(checked, "it") == checked
