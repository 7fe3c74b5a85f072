import json
import logging

import pytest

from wyoming_qwen3tts.models import progress as progress_module
from wyoming_qwen3tts.models.progress import (
    EtaEstimator,
    InstallProgress,
    LogReporter,
    parse_progress,
    read_progress,
    spell_duration,
)

MODEL = "model/cpu_int8"


@pytest.fixture
def clock(monkeypatch):
    """Let tests set the time."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


def progress(state, fraction=0.0, message="m"):
    return InstallProgress(MODEL, state, fraction, None, message)


def test_estimate_follows_the_rate_of_the_last_seconds(clock):
    found = []
    eta = EtaEstimator(MODEL, "building", found.append)
    for second in range(41):
        clock[0] = 100.0 + second
        # Quick at first, then at one percent a second.
        eta.advance(min(0.1 * second, 0.5) if second < 5 else 0.5 + 0.01 * (second - 5), "x")
    assert found[0].eta_s is None
    assert found[4].eta_s == pytest.approx(6.0)
    assert found[-1].eta_s == pytest.approx(15.0, rel=0.05)


def test_estimate_forgets_what_had_to_be_repeated(clock):
    found = []
    eta = EtaEstimator(MODEL, "fetching", found.append)
    for second, fraction in enumerate([0.0, 0.3, 0.6, 0.1, 0.2, 0.3]):
        clock[0] = 100.0 + second
        eta.advance(fraction, "x")
    assert found[3].eta_s is None
    assert found[5].eta_s == pytest.approx(7.0)


def test_log_has_a_line_for_each_tenth_and_each_minute(clock, caplog):
    caplog.set_level(logging.INFO)
    log = LogReporter()
    for percent in range(100):
        log(progress("fetching", percent / 100))
    assert len(caplog.records) == 10
    clock[0] += 61
    log(progress("fetching", 0.995))
    log(progress("fetching", 0.996))
    log(progress("building", 0.0))
    log(progress("failed", message="No room."))
    assert [record.levelname for record in caplog.records[10:]] == ["INFO", "INFO", "ERROR"]
    assert caplog.records[-1].getMessage() == f"{MODEL}: No room."


def test_progress_travels_as_a_line_of_json(tmp_path):
    found = InstallProgress(MODEL, "failed", 0.5, 3.0, "Nö.", retry_s=0.0)
    assert parse_progress(found.to_json()) == found
    (tmp_path / "a.json").write_text(found.to_json())
    assert read_progress(tmp_path / "a.json") == found
    assert read_progress(tmp_path / "b.json") is None


VALID = json.loads(InstallProgress(MODEL, "fetching", 0.5, None, "m").to_json())


@pytest.mark.parametrize(
    "text",
    [
        *("{half", "[]", "null", "3", '"text"', "{}"),
        *(
            json.dumps({**VALID, **changes})
            for changes in (
                {"model": None},
                {"state": "dancing"},
                {"state": []},
                {"fraction": "half"},
                {"eta_s": "soon"},
                {"message": 3},
                {"unknown": 1},
            )
        ),
    ],
)
def test_garbage_is_no_progress(text, tmp_path):
    """B22: a progress file of unknown content."""
    assert parse_progress(text) is None
    (tmp_path / "a.json").write_text(text)
    assert read_progress(tmp_path / "a.json") is None
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    assert read_progress(tmp_path / "a.json") is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (InstallProgress("m", "building", 0.43, 118.0, ""), "building 43 %, about 2 minutes"),
        (InstallProgress("m", "fetching", 0.0, None, ""), "fetching 0 %"),
        (InstallProgress("m", "failed", 0.0, None, "No network."), "No network."),
    ],
)
def test_progress_in_words(state, words):
    assert state.describe() == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "10 seconds"),
        (34, "30 seconds"),
        (61, "1 minute"),
        (200, "3 minutes"),
        (3700, "1 hour"),
        (9000, "2 hours"),
    ],
)
def test_duration_in_words(seconds, words):
    assert spell_duration(seconds) == words
