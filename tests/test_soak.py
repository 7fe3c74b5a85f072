"""The soak itself: what it sends, how it judges, and one short run."""

import json
import random

import pytest

from script._soak import __main__ as soak
from script._soak import clients
from tests.support.hostile_inputs import FIXED, make_hostile

DURATION_S = 400.0


def series(**changes):
    measures = {
        "memory, MB": lambda _: 100.0,
        "threads": lambda _: 12,
        "descriptors": lambda _: 30,
        "describe, s": lambda _: 0.01,
        "first audio, s": lambda _: 0.01,
    } | {name.replace("_", ", "): change for name, change in changes.items()}
    return {
        name: [(float(at_s), value(at_s)) for at_s in range(0, int(DURATION_S), 2)]
        for name, value in measures.items()
    }


def test_hostile_inputs_are_many_and_repeatable():
    rng, again = random.Random(5), random.Random(5)
    inputs = [make_hostile(rng) for _ in range(500)]
    assert inputs == [make_hostile(again) for _ in range(500)]
    kinds = {each.kind for each in inputs}
    assert len(kinds & set(FIXED)) > 40
    assert {"damaged events", "random bytes", "rows of marks", "slow-loris"} <= kinds


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"memory_MB": lambda at_s: 100.0 + 20.0 * min(at_s / 60, 1.0)}, []),  # caches that fill
        ({"memory_MB": lambda at_s: 100.0 + at_s / 20}, ["memory, MB"]),  # 180 MB an hour
        ({"threads": lambda at_s: 12 + int(at_s) // 60}, ["threads"]),
        ({"descriptors": lambda at_s: 30 + int(at_s) // 20}, ["descriptors"]),
        ({"descriptors": lambda at_s: 30 + int(at_s) % 7}, []),
        ({"describe_s": lambda at_s: 0.01 + at_s / 1_000}, ["describe, s"]),
    ],
)
def test_growth_is_told_from_filling_up(changes, expected):
    judgements = soak.judge(series(**changes), DURATION_S)
    assert [each.name for each in judgements if not each.is_flat] == expected


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lost": ["3.0 s: plain: gone"]}, "lost: 3.0 s: plain: gone"),
        ({"log": ["Traceback"]}, "log: Traceback"),
        ({"exit_code": -11}, "the server ended with -11"),
        ({"series": series(describe_s=lambda _: 1.5)}, "a describe took 1.50 s"),
        ({"left_behind": {"connections": 2, "requests": 0}}, "2 connections left behind"),
    ],
)
def test_every_problem_is_named(change, problem):
    good = {
        "lost": [],
        "log": [],
        "exit_code": 0,
        "series": series(),
        "left_behind": {"connections": 0, "requests": 0, "descriptors": 3, "threads": 6},
    }
    judgements = soak.judge(good["series"], DURATION_S)
    assert soak.problems(good, judgements) == []
    assert soak.problems(good | change, judgements) == [problem]


@pytest.mark.slow
def test_short_run_against_a_real_server(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(soak, "_QUIET_S", 0.3)
    monkeypatch.setattr(clients, "_REACT_S", 0.2)
    monkeypatch.setattr(clients, "_NEVER_READ_S", (0.1, 0.2))
    monkeypatch.setattr(clients, "_IDLE_S", (0.1, 0.2))
    path = tmp_path / "soak.json"
    soak.main(["--minutes", "0.04", "--seed", "3", "--json", str(path)])
    report = json.loads(path.read_text())
    assert report["lost"] == report["log"] == []
    assert report["exit_code"] == 0
    assert report["left_behind"]["connections"] == report["left_behind"]["requests"] == 0
    assert sum(report["hostile"].values()) > 5
    assert report["done"]["control"] >= 1
    assert "hostile inputs" in capsys.readouterr().out
