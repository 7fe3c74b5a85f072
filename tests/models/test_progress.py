import json
import logging

import pytest

from wyoming_qwen3tts.models import progress as progress_module
from wyoming_qwen3tts.models.progress import (
    EtaEstimator,
    InstallProgress,
    LogReporter,
    parse_progress,
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


def test_estimate_follows_the_rate_since_the_start(clock):
    found = []
    eta = EtaEstimator(MODEL, "building", found.append)
    for second in range(5):
        clock[0] = 100.0 + second
        eta.advance(0.2 + 0.1 * second)
        eta.advance(0.9)
    assert [each.fraction for each in found] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])
    assert [each.eta_s for each in found] == [None, None, *map(pytest.approx, (6.0, 5.0, 4.0))]


def test_log_has_a_line_for_each_tenth_and_the_end(caplog):
    caplog.set_level(logging.INFO)
    log = LogReporter()
    for percent in range(100):
        log(progress("fetching", percent / 100))
    assert len(caplog.records) == 10
    log(progress("building", 0.0))
    log(progress("failed", message="No room."))
    assert [record.levelname for record in caplog.records[10:]] == ["INFO", "ERROR"]
    assert caplog.records[-1].getMessage() == f"{MODEL}: No room."


def test_progress_travels_as_a_line_of_json():
    found = InstallProgress(MODEL, "failed", 0.5, 3.0, "Nö.", retry_s=0.0)
    assert parse_progress(found.to_json()) == found


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
def test_garbage_is_no_progress(text):
    """B22: a progress file of unknown content."""
    assert parse_progress(text) is None
    assert parse_progress(b"\xff\xfe") is None


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
