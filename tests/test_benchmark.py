"""The benchmark itself: what it reports, from what it measured, and what it keeps."""

import json
import sys
from statistics import median

import numpy as np
import pytest

from script._benchmark import campaign, materials
from script._benchmark import report as report_module
from script._benchmark.attempts import Attempts
from script._benchmark.cli import main
from script._benchmark.codec_comparison import CodecComparisonSubject
from script._benchmark.conditioned import ConditionedTensors
from script._benchmark.extent import Extent
from script._benchmark.floor import codec_operations_per_frame, weight_bytes_per_run
from script._benchmark.materials import Materials
from script._benchmark.placement import CorePlacement
from script._benchmark.playing import stopped_s
from script._benchmark.processes import BenchmarkError, Worker
from script._benchmark.timing import TimedComponent
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.graph import MICROSOFT_DOMAIN, GraphBuilder

SUMMARY = [
    "speedup_vs_published",
    "language_floor_ratio",
    "lanes_speedup",
    "throughput_4_streams",
    "first_audio_ratio",
    "codec_speedup",
    "codec_snr_db",
    "peak_rss_mb",
]
SPEECH = [
    "word",
    "sentence",
    "paragraph",
    "paragraph_lanes",
    "paragraph_heard",
    "streams_1",
    "streams_2",
    "streams_4",
    "streams_4_fifo",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("benchmark")


@pytest.fixture(scope="module")
def outcome(directory):
    """The report of a trial run, and what it printed."""
    path = directory / "report.json"
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *values, **_: printed.append(" ".join(values)))
        arguments = ["--preset", "tiny", "--data", str(directory / "data"), "--json", str(path)]
        assert main(arguments) == 0
    return json.loads(path.read_text()), "\n".join(printed)


@pytest.fixture
def report(outcome):
    return outcome[0]


def of(report, name, key):
    return median(run[key] for run in report["runs"][name])


def test_the_report_has_the_agreed_summary_and_every_speech_measurement(report):
    assert list(report["summary"]) == SUMMARY
    assert [figures["name"] for figures in report["speech"]] == SPEECH
    assert report["settings"]["extent"] == "trial"
    for rates in report["rates"].values():
        assert all(rate > 0 for rate in rates.values())


def test_ratios_follow_from_the_measurements(report):
    summary, floor, frame = report["summary"], report["floor"], report["frame"]
    threads = str(report["settings"]["num_threads"])
    language_ms = of(report, "sentence", "talker_step_ms") + of(
        report, "sentence", "predictor_run_ms"
    )
    weight_bytes = report["work"]["talker_bytes"] + report["work"]["predictor_bytes"]
    floor_ms = weight_bytes / of_rates(report, "read_gb_per_s", threads) / 1e6
    assert summary["language_floor_ratio"] == pytest.approx(language_ms / floor_ms)

    (run,) = report["runs"]["published"]
    published_ms = (
        run["talker_ms"] + run["predictor_ms"] + run["codec_run_ms"] / run["codec_frames_per_run"]
    )
    (run,) = report["runs"]["sentence"]
    steps, frames = run["num_frames"] - 1, run["num_frames"]
    other_s = run["wall_s"] - run["prefill_s"] - run["talker_s"]
    ours_ms = 1e3 * (run["talker_s"] / steps + other_s / frames)
    assert frame["total_ms"] == pytest.approx(ours_ms)
    assert summary["speedup_vs_published"] == pytest.approx(published_ms / ours_ms)

    assert summary["lanes_speedup"] == pytest.approx(
        of(report, "paragraph", "wall_s") / of(report, "paragraph_lanes", "wall_s")
    )
    assert summary["throughput_4_streams"] == pytest.approx(
        4 * of(report, "streams_1", "wall_s") / of(report, "streams_4", "wall_s")
    )
    parts_ms = [of(report, "first_audio_parts", f"{part}_ms") for part in PARTS]
    measured_ms = median(run["first_audio_ms"][0] for run in report["runs"]["sentence"])
    assert summary["first_audio_ratio"] == pytest.approx(measured_ms / sum(parts_ms))
    assert floor["codec_ms"] == pytest.approx(
        report["work"]["codec_operations"] / of_rates(report, "fp32_gflops", threads) / 1e6
    )


PARTS = ("prefill", "frame", "decode")


def of_rates(report, kind, threads):
    return median(run[kind][threads] for run in report["runs"]["machine"])


def test_utterances_have_fixed_lengths_and_a_first_audio_each(report):
    for figures in report["speech"]:
        utterances = {"paragraph": 6, "streams": 1}.get(figures["name"].split("_")[0], 1)
        if figures["name"].startswith("streams"):
            utterances = int(figures["name"].split("_")[1])
        assert figures["utterances"] == len(figures["first_audio_ms"]) == utterances
        assert figures["num_frames"] == 4 * utterances
        assert figures["audio_s"] == pytest.approx(0.08 * 4 * utterances)
        assert figures["rtf"] == pytest.approx(figures["wall_s"] / figures["audio_s"])


def test_the_table_shows_the_summary_and_the_noise(outcome):
    report, printed = outcome
    for name, value in report["summary"].items():
        assert f"| {name} | {value:.2f} |" in printed
    assert f"{report['noise']['median_foreign_cpu']:.0%} of a core" in printed
    assert "figures mean nothing" in printed


@pytest.mark.usefixtures("outcome")
def test_components_are_measured_beside_those_of_another_bundle(directory, capsys):
    data, path = directory / "data", directory / "components.json"
    bundle = data / "0.6b-tiny" / "cpu_int8"
    arguments = ["--preset", "tiny", "--data", str(data), "--json", str(path)]
    assert main([*arguments, "--components", "codec_decoder", "--against", str(bundle)]) == 0
    values = json.loads(path.read_text())
    # The bundle beside itself: nothing is lost.
    assert values["codec_snr_db"] == 200.0
    assert [entry["case"] for entry in values["components"]] == [
        f"decode: {frames} frames" for frames in (1, 2, 4, 12)
    ]
    assert all(entry["median_ms"] > 0 < entry["against_ms"] for entry in values["components"])
    assert "decode: 12 frames" in capsys.readouterr().out


@pytest.mark.usefixtures("outcome")
def test_earlier_reports_can_be_drawn(directory, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "speed.svg"
    arguments = ["--from", str(directory / "report.json"), "--plot", str(path)]
    assert main(arguments) == 0
    assert "0.6B int8" in path.read_text()


@pytest.mark.usefixtures("outcome")
def test_without_matplotlib_the_message_says_what_to_do(directory, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["--from", str(directory / "report.json"), "--plot", str(directory / "x.svg")]
    assert main(arguments) == 1
    assert "extra 'benchmark'" in capsys.readouterr().err


def test_other_files_are_not_taken_for_reports(tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert main(["--from", str(path), "--plot", str(tmp_path / "x.png")]) == 1
    assert "no report of this version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--from", "report.json"], "--from needs --plot"),
        (["--against", "bundle"], "need --components"),
        (["--components", "--plot", "x.png"], "nothing to plot"),
        (["--threads", "0"], "below 1"),
        (["--json", "nowhere/report.json"], "no directory"),
        (["--components", "vocoder"], "unknown component 'vocoder'"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_measuring(arguments, problem, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert problem in capsys.readouterr().err


def test_an_unknown_precision_is_refused_with_the_known_ones(capsys, tmp_path):
    assert main(["--precision", "int3", "--data", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "int3" in message
    assert "int8-int4heads" in message


def test_kept_directories_are_made_again_when_their_code_changes(tmp_path):
    target, made = tmp_path / "kept", []

    def make(directory):
        directory.mkdir()
        made.append(directory)

    for digest in ("one", "one", "two"):
        assert materials._kept(target, digest, make) == target
    assert len(made) == 2


def test_a_failed_making_is_not_taken_for_a_finished_one(tmp_path):
    def fail(directory):
        directory.mkdir()
        raise RuntimeError("disk full")

    target = tmp_path / "kept"
    with pytest.raises(RuntimeError):
        materials._kept(target, "one", fail)
    assert materials._kept(target, "one", lambda directory: directory.mkdir()) == target


def test_weights_count_once_for_each_operator_that_reads_them(tmp_path):
    with GraphBuilder("sample", tmp_path) as graph:
        x = graph.input("x", np.float32, [1, 64])
        rows = graph.input("rows", np.int64, [1])
        square = graph.weight("square", np.ones((64, 64), np.float32))
        half = graph.weight("half", np.ones((64, 64), np.float16))
        table = graph.weight("table", np.ones((1000, 64), np.float32))
        twice = graph.op("MatMul", [graph.op("MatMul", [x, square]), square])
        widened = graph.op("MatMul", [twice, graph.cast(half, np.float32)])
        added = graph.op("Add", [widened, graph.op("Gather", [table, rows])])
        graph.output(added, "y", np.float32, [1, 64])
        graph.save()
    assert weight_bytes_per_run(tmp_path / "sample.onnx") == 3 * 64 * 64 * 4


def test_packed_weights_count_with_their_scales(tmp_path):
    with GraphBuilder("packed", tmp_path) as graph:
        x = graph.input("x", np.float32, [1, 128])
        blocks = graph.weight("blocks", np.zeros((64, 1, 128), np.uint8))
        scales = graph.weight("scales", np.ones((64, 1), np.float32))
        attributes = {"K": 128, "N": 64, "bits": 8, "block_size": 128}
        y = graph.op("MatMulNBits", [x, blocks, scales], domain=MICROSOFT_DOMAIN, **attributes)
        graph.output(y, "y", np.float32, [1, 64])
        graph.save()
    assert weight_bytes_per_run(tmp_path / "packed.onnx") == 64 * 128 + 64 * 4


def test_a_frame_of_the_real_codec_takes_five_billion_operations(tmp_path):
    config = Materials(tmp_path, "0.6B", "real").codec_config()
    assert codec_operations_per_frame(config) == pytest.approx(4.95e9, rel=1e-3)


class ScriptedPlacement:
    """Answers with where the cores are, and counts how often somebody waits for them."""

    def __init__(self, *are_apart):
        self.answers = list(are_apart)
        self.num_waits = 0

    def settle(self):
        self.num_waits += 1

    def are_apart(self):
        return self.answers.pop(0) if self.answers else None


class ScriptedWorker:
    """Answers with given shares of foreign processor time."""

    def __init__(self, *shares):
        self.shares = list(shares)

    def run(self, task, **arguments):
        return {"foreign_cpu": self.shares.pop(0), "task": task}


def rounds_of(worker, **changes):
    extent = Extent("test", 0.0, 1, 1, 0.0, 10.0, 3, 1, 0.1, 1, 0.1)
    item = campaign.Measurement("only", worker, "probe", {})
    rounds = campaign.Rounds([item], Extent(**{**vars(extent), **changes}), ScriptedPlacement())
    rounds.run()
    return [run["foreign_cpu"] for run in rounds.runs["only"]]


def test_disturbed_measurements_are_repeated_and_the_quietest_counts():
    worker = ScriptedWorker(0.9, 0.3, 0.5, 0.0)
    assert rounds_of(worker) == [0.3]
    assert worker.shares == [0.0]  # the tries were used up


def test_quiet_measurements_and_those_without_a_figure_are_not_repeated():
    worker = ScriptedWorker(0.01, None, 0.0)
    assert rounds_of(worker, max_rounds=2, min_rounds=2) == [0.01, None]


@pytest.mark.parametrize(
    ("places", "expected", "is_apart"),
    [
        ([False, False], 0.02, False),
        ([False, True, False, False], 0.05, False),  # moved during the first
        ([True, True, True, True, False, False], 0.03, False),
        ([True] * 6, 0.02, True),  # the least disturbed of those there are
        ([None] * 6, 0.02, None),
    ],
)
def test_measurements_with_the_cores_apart_are_repeated(places, expected, is_apart):
    placement = ScriptedPlacement(*places)
    worker = ScriptedWorker(0.02, 0.05, 0.03)
    figures = Attempts(placement, max_tries=3, time_s=10.0).best(worker, "probe", {})
    assert (figures["foreign_cpu"], figures["cores_apart"]) == (expected, is_apart)
    assert placement.num_waits == 3 - len(worker.shares)


def test_runs_with_the_cores_apart_count_only_where_there_are_no_others():
    together, apart, unknown = ({"cores_apart": value} for value in (False, True, None))
    assert report_module._together([apart, together, unknown]) == [together, unknown]
    assert report_module._together([apart, apart]) == [apart, apart]


def test_waiting_and_repeating_end_with_their_time():
    worker, placement = ScriptedWorker(0.9, 0.3), ScriptedPlacement()
    attempts = Attempts(placement, max_tries=3, time_s=0.0)
    assert attempts.best(worker, "probe", {})["foreign_cpu"] == 0.9
    assert placement.num_waits == 0


def test_cores_that_stay_where_they_are_are_not_waited_for():
    for gain in (1.1, 1.8):
        waits = []
        placement = CorePlacement(2, gain=lambda gain=gain: gain, sleep=waits.append)
        looked = len(waits)
        placement.settle()
        assert placement.are_apart() is None
        assert len(waits) == looked
    placement = CorePlacement(4, gain=lambda: 1 / 0, sleep=lambda pause_s: None)
    assert placement.are_apart() is None


def test_cores_that_move_are_waited_for_but_not_forever():
    gains = [1.1, *[1.8] * 15, 1.1]
    placement = CorePlacement(2, gain=lambda: gains.pop(0), sleep=lambda pause_s: None)
    placement.settle()
    assert gains == []
    gains += [1.8] * 100
    placement.settle()
    assert 0 < len(gains) < 100
    assert placement.are_apart() is True


def test_rounds_end_with_the_budget_but_not_before_the_least_number():
    assert len(rounds_of(ScriptedWorker(*[0.0] * 5), max_rounds=5, min_rounds=2)) == 2
    assert len(rounds_of(ScriptedWorker(*[0.0] * 5), max_rounds=5, budget_s=60.0)) == 5


def test_a_worker_that_dies_is_an_error_that_names_it(tmp_path, capfd):
    arguments = {"bundle_directory": tmp_path, "max_lanes": 1, "num_threads": 1}
    with (
        Worker("speech", "the broken one", **arguments) as worker,
        pytest.raises(BenchmarkError, match="the broken one"),
    ):
        worker.run("speak", texts=[], frames=[])
    assert "manifest.json" in capfd.readouterr().err


def test_timed_components_pass_everything_on():
    class Component:
        ramp = (1, 2)

        def double(self, number):
            return 2 * number

    timed = TimedComponent(Component(), lambda result: result + 1)
    assert timed.ramp == (1, 2)
    assert timed.double(3) == 7
    assert timed.double(number=4) == 9
    assert len(timed.durations_s["double"]) == 2
    assert timed.total_s() == timed.total_s("double") > 0
    timed.reset()
    assert timed.total_s() == 0
    assert timed.median_ms("double") is None


def test_codec_decoders_are_compared_on_conditioned_weights(directory):
    made = Materials(directory / "data", "0.6B", "tiny")
    bundle = made.bundle(materials.find_recipe("int8"))
    subject = CodecComparisonSubject(*made.codec_decoders(bundle), num_threads=1)
    assert subject.run("compare")["snr_db"] > 35
    tensors = ConditionedTensors(made.checkpoint() / "speech_tokenizer" / "model.safetensors")
    plain = TensorFile(tensors.path)
    for name, gain in (
        ("decoder.decoder.1.block.1.conv.weight", 0.7),
        ("decoder.decoder.4.block.4.conv1.conv.weight", 0.35),
        ("decoder.decoder.4.block.4.conv2.conv.weight", 1.4),
        ("decoder.decoder.6.conv.weight", 1.0),
        ("decoder.decoder.4.block.4.conv1.conv.bias", 1.0),
    ):
        shape = plain.shape(name)
        expected = plain.read(name, shape) * np.float32(gain)
        np.testing.assert_array_equal(tensors.read(name, shape), expected)


@pytest.mark.parametrize(
    ("utterances", "expected"),
    [
        ([[(1.0, 0.5), (1.4, 0.5), (1.9, 0.5)]], 0.0),
        ([[(1.0, 0.5), (1.7, 0.5), (3.0, 0.5)]], 0.2 + 0.8),
        ([[(1.0, 2.0)], [(0.5, 1.0), (2.9, 1.0)]], 0.0),
        # The second utterance was there early, but the first one ends late.
        ([[(1.0, 0.1), (2.0, 0.1)], [(0.5, 1.0)], [(3.6, 1.0)]], 0.9 + 0.5),
        ([[], [(1.0, 1.0)]], 0.0),
    ],
)
def test_playing_stops_where_a_piece_comes_too_late(utterances, expected):
    assert stopped_s(utterances) == pytest.approx(expected)
