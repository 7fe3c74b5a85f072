"""The soak itself: what it sends, how it judges, what it draws, and one short run."""

import json
import os
import random
import signal
import subprocess
import time
from xml.etree import ElementTree

import pytest

from script._soak import clients, run
from script._soak import heartbeat as heartbeat_module
from script._soak.cli import main
from script._soak.heartbeat import Heartbeat, Standstill, served_waits
from script._soak.hostile import FIXED, make_hostile
from script._soak.plot import draw
from script._soak.server import Sample, ServerProcess
from script._soak.verdict import describe_latency, judge, problems

DURATION_S = 400.0


def samples(rss=lambda _: 100.0, threads=lambda _: 12, descriptors=lambda _: 30):
    return [
        Sample(at_s, rss(at_s), threads(at_s), descriptors(at_s), at_s)
        for at_s in range(0, int(DURATION_S), 2)
    ]


def waits(wait=lambda _: 0.01):
    return [(float(at_s), wait(at_s)) for at_s in range(0, int(DURATION_S), 3)]


def names_not_flat(judgements):
    return [each.name for each in judgements if not each.is_flat]


def test_hostile_inputs_are_many_and_repeatable():
    rng, again = random.Random(5), random.Random(5)
    inputs = [make_hostile(rng) for _ in range(500)]
    assert inputs == [make_hostile(again) for _ in range(500)]
    kinds = {each.kind for each in inputs}
    assert len(kinds & set(FIXED)) > 40
    assert {"damaged events", "random bytes", "rows of marks", "slow-loris"} <= kinds
    assert all(b"".join(each.pieces) or each.kind == "damaged events" for each in inputs)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"rss": lambda at_s: 100.0 + 20.0 * min(at_s / 60, 1.0)}, []),  # caches that fill
        ({"rss": lambda at_s: 100.0 + at_s / 20}, ["memory"]),  # a leak of 180 MB an hour
        ({"threads": lambda at_s: 12 + int(at_s) // 60}, ["threads"]),
        ({"descriptors": lambda at_s: 30 + int(at_s) // 20}, ["descriptors"]),
        ({"descriptors": lambda at_s: 30 + int(at_s) % 7}, []),
    ],
)
def test_growth_is_told_from_filling_up(changes, expected):
    judgements = judge(samples(**changes), waits(), waits(), DURATION_S)
    assert names_not_flat(judgements) == expected


def test_waits_that_become_longer_are_noticed():
    slower = waits(lambda at_s: 0.01 + at_s / 1_000)
    assert names_not_flat(judge(samples(), slower, waits(), DURATION_S)) == ["describe"]
    assert names_not_flat(judge(samples(), waits(), slower, DURATION_S)) == ["first audio"]


def good_report():
    return {
        "lost": [],
        "bad_log_lines": [],
        "exit_code": 0,
        "slowest_describe_s": 0.9,
        "left_behind": {"connections": 0, "requests": 0, "descriptors": 3, "threads": 6},
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lost": ["3.0 s: plain: gone"]}, "lost: 3.0 s: plain: gone"),
        ({"bad_log_lines": ["Traceback"]}, "log: Traceback"),
        ({"exit_code": -11}, "the server ended with -11"),
        ({"slowest_describe_s": 1.5}, "a describe took 1.50 s"),
        ({"left_behind": {"connections": 2, "requests": 0}}, "2 connections left behind"),
    ],
)
def test_whatever_is_wrong_is_named(change, problem):
    judgements = judge(samples(), waits(), waits(), DURATION_S)
    assert problems(good_report(), judgements) == []
    assert problems(good_report() | change, judgements) == [problem]


def test_figures_of_waits():
    series = [(0.0, value / 1_000) for value in range(101)]
    figures = describe_latency(series)
    assert figures == {
        "count": 101, "median_s": 0.05, "p95_s": 0.095, "p99_s": 0.099, "worst_s": 0.1,
    }  # fmt: skip
    assert describe_latency([(0.0, 0.5)])["p99_s"] == 0.5


def test_a_machine_that_stands_still_is_no_fault_of_the_server(monkeypatch):
    monkeypatch.setattr(heartbeat_module, "_BEAT_S", 0.005)
    clock_s, is_stopped, num_beats = 0.0, False, 0

    def ask():
        nonlocal num_beats
        num_beats += 1
        return is_stopped

    def wait_for_beats():
        enough = num_beats + 2
        deadline_s = time.monotonic() + 5.0
        while num_beats < enough and time.monotonic() < deadline_s:
            time.sleep(0.002)

    with Heartbeat(lambda: clock_s, ask) as heartbeat:
        wait_for_beats()
        assert not heartbeat.standstills
        clock_s = 13.0  # nobody was run for so long
        wait_for_beats()
        is_stopped = True
        wait_for_beats()
        clock_s = 13.2
        wait_for_beats()
        is_stopped = False
        wait_for_beats()
    assert heartbeat.standstills == [
        Standstill(0.0, 13.0, "the clients were not run"),
        Standstill(13.0, 0.2, "the server's process was stopped"),
    ]
    during = [(13.05, 12.9), (5.0, 0.1)]
    others = [(20.0, 6.8), (13.5, 0.2)]
    assert served_waits(during + others, heartbeat.standstills) == others


def test_a_server_that_the_system_has_stopped_is_seen(tmp_path):
    server = ServerProcess(tmp_path / "log", "embedded-random")
    assert not server.is_stopped
    server._process = subprocess.Popen(["sleep", "60"])
    try:
        assert not server.is_stopped
        os.kill(server._process.pid, signal.SIGSTOP)
        deadline_s = time.monotonic() + 5.0
        while not server.is_stopped and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert server.is_stopped
    finally:
        server._process.kill()
        server._process.wait()
    assert not server.is_stopped


def test_short_run_against_a_real_server(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "_QUIET_S", 0.3)
    monkeypatch.setattr(clients, "_REACT_S", 0.2)
    monkeypatch.setattr(clients, "_NEVER_READ_S", (0.1, 0.2))
    monkeypatch.setattr(clients, "_IDLE_S", (0.1, 0.2))
    report_file, plot_file = tmp_path / "soak.json", tmp_path / "soak.svg"
    main(["--minutes", "0.04", "--seed", "3", "--json", str(report_file), "--plot", str(plot_file)])
    report = json.loads(report_file.read_text())
    assert report["lost"] == report["bad_log_lines"] == []
    assert report["exit_code"] == 0
    assert report["left_behind"]["connections"] == report["left_behind"]["requests"] == 0
    assert sum(report["hostile"].values()) > 5
    assert report["done"]["control"] >= 1
    assert report["load"]["server_cores"] > 0.0
    assert all(each["duration_s"] > 0.0 for each in report["standstills"])
    picture = ElementTree.fromstring(plot_file.read_text())  # noqa: S314 - our own
    assert picture.tag.endswith("svg")
    assert draw(report) == plot_file.read_text()
    assert "hostile inputs" in capsys.readouterr().out
