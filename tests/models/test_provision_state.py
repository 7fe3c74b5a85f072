import json
import logging
import threading

import pytest

from wyoming_qwen3tts import machine
from wyoming_qwen3tts.models import provision_state
from wyoming_qwen3tts.models.data_lock import data_lock, is_held
from wyoming_qwen3tts.models.provision_state import (
    BarReporter,
    LogReporter,
    ProvisionState,
    StageClock,
    StateFile,
    read_state,
)

MODEL = "model/cpu_int8"


@pytest.fixture
def clock(monkeypatch):
    """Let tests say what time it is."""
    now = [100.0]
    monkeypatch.setattr(provision_state.time, "monotonic", lambda: now[0])
    return now


def state(stage, fraction=0.0, message="m"):
    return ProvisionState(MODEL, stage, fraction, None, message)


def test_estimate_follows_the_rate_of_the_last_seconds(clock):
    states = []
    stage = StageClock(MODEL, "building", states.append)
    for second in range(41):
        clock[0] = 100.0 + second
        # Quick at first, then at one percent a second.
        stage.advance(min(0.1 * second, 0.5) if second < 5 else 0.5 + 0.01 * (second - 5), "x")
    assert states[0].eta_s is None
    assert states[4].eta_s == pytest.approx(6.0)
    assert states[-1].eta_s == pytest.approx(15.0, rel=0.05)


def test_estimate_forgets_what_had_to_be_done_again(clock):
    states = []
    stage = StageClock(MODEL, "fetching", states.append)
    for second, fraction in enumerate([0.0, 0.3, 0.6, 0.1, 0.2, 0.3]):
        clock[0] = 100.0 + second
        stage.advance(fraction, "x")
    assert states[3].eta_s is None
    assert states[5].eta_s == pytest.approx(7.0)


def test_log_has_a_line_for_each_tenth_and_each_minute(clock, caplog):
    caplog.set_level(logging.INFO)
    log = LogReporter()
    for percent in range(100):
        log(state("fetching", percent / 100))
    assert len(caplog.records) == 10
    clock[0] += 61
    log(state("fetching", 0.995))
    log(state("fetching", 0.996))
    log(state("building", 0.0))
    log(state("failed", message="No room."))
    assert [record.levelname for record in caplog.records[10:]] == ["INFO", "INFO", "ERROR"]
    assert caplog.records[-1].getMessage() == f"{MODEL}: No room."


def test_bar_moves_and_goes(capsys):
    bar = BarReporter()
    for each in (state("fetching", 0.5, "weights"), state("building", 0.2), state("ready", 1.0)):
        bar(each)
    bar.close()
    text = capsys.readouterr().err
    assert "fetching weights" in text
    assert " 50%" in text
    assert "building" in text


def test_state_file_is_for_programs_and_not_written_too_often(clock, tmp_path):
    path = tmp_path / "work" / "state.json"
    file = StateFile(path)
    file.write(state("fetching", 0.1))
    file.write(state("fetching", 0.2))
    assert json.loads(path.read_text())["fraction"] == 0.1
    clock[0] += 1
    file.write(state("fetching", 0.3))
    assert read_state(path) == state("fetching", 0.3)
    file.write(state("failed"))
    assert read_state(path) == state("failed")
    path.write_text("{half")
    assert read_state(path) is None


def test_state_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "work").write_text("in the way")
    StateFile(tmp_path / "work" / "state.json").write(state("fetching"))


def test_lock_is_held_by_one_and_says_what_for(tmp_path):
    told, cancelled = [], threading.Event()
    assert not is_held(tmp_path)
    with data_lock(tmp_path, "first", told.append, cancelled):
        assert is_held(tmp_path)
        cancelled.set()
        with (
            pytest.raises(provision_state.CancelledError),
            data_lock(tmp_path, "second", told.append, cancelled),
        ):
            pytest.fail("held twice")
    assert told == ["first"]
    assert not is_held(tmp_path)


def test_free_space_of_a_directory_that_is_not_there_yet(tmp_path):
    assert machine.free_disk_bytes(tmp_path / "a" / "b") == pytest.approx(
        machine.free_disk_bytes(tmp_path), rel=0.1
    )


def test_memory_limit_of_a_control_group_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.available_memory_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4000 kB\n")
    assert machine.available_memory_bytes() == 4_096_000
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1500000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 500000\n")
    assert machine.available_memory_bytes() == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.available_memory_bytes() == 4_096_000
