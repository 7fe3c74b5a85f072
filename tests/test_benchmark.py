"""The benchmark itself: what it prints, from what it measured, and what it keeps."""

import json
import re
from statistics import median

import numpy as np
import pytest

from script._benchmark.__main__ import _CASES, _table, main
from script._benchmark.fixtures import ROOT, _cached
from script._benchmark.floor import codec_operations_per_frame, weight_bytes_per_run
from script._benchmark.worker import Worker, WorkerError
from tests.support.random_checkpoint import RandomCheckpointRecipe
from tests.support.random_checkpoint.architecture import codec_config
from wyoming_qwen3tts.builder.config import read_codec_decoder_config
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a tiny run, measured against the same checkout."""
    directory = tmp_path_factory.mktemp("benchmark")
    path = directory / "report.json"
    arguments = ["--preset", "tiny", "--rounds", "1", "--length", "0", "--against", str(ROOT)]
    assert main([*arguments, "--data", str(directory / "data"), "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_every_case_is_measured_in_both_checkouts(report):
    assert list(report["runs"]["here"]) == list(report["runs"]["against"]) == list(_CASES)
    for case, (_, texts, _) in _CASES.items():
        (run,) = report["runs"]["here"][case]
        assert len(run["first_audio_ms"]) == len(texts)
        # Length 0 asks for the shortest utterances: four frames each.
        assert run["num_frames"] == 4 * len(texts)
        assert 0 < run["talker_s"] + run["predictor_s"] + run["codec_s"] < run["wall_s"]


def test_the_table_holds_the_ratios_of_the_measurements(report):
    for case in _CASES:
        report["runs"]["against"][case] = [
            {**run, "wall_s": 3 * run["wall_s"]} for run in report["runs"]["here"][case]
        ]
    table = _table(report)

    assert "median of the cases: 3.000" in table
    here = report["runs"]["here"]
    lanes = median(run["wall_s"] for run in here["paragraph, 1 lane"]) / median(
        run["wall_s"] for run in here["paragraph, 4 lanes"]
    )
    assert f"Four lanes / one: {lanes:.2f}." in table
    talker = re.search(r"\| talker \| ([0-9.]+) \|", table)
    (sentence,) = here["sentence"]
    steps = sentence["num_frames"] - 1
    assert float(talker[1]) == pytest.approx(1e3 * sentence["talker_s"] / steps, abs=0.01)


def test_an_unknown_precision_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--precision", "int3"])
    assert "int8" in capsys.readouterr().err


def test_kept_directories_are_made_again_when_their_code_changes(tmp_path):
    source, target, made = tmp_path / "code.py", tmp_path / "kept", []

    def make(directory):
        made.append(directory)
        directory.mkdir()

    for text in ("one", "one", "two"):
        source.write_text(text)
        _cached(target, [source], "", make)
    assert len(made) == 2


def test_a_worker_that_dies_is_an_error(tmp_path, capfd):
    with (
        Worker(ROOT, "speech", bundle_directory=tmp_path, max_lanes=1, num_threads=1) as worker,
        pytest.raises(WorkerError, match="status 1 at 'speak'"),
    ):
        worker.run("speak", texts=["Hello."], frames=[4])
    assert str(tmp_path) in capfd.readouterr().err


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
    assert weight_bytes_per_run(tmp_path / "sample.onnx") == 3 * 64 * 64 * 4


def test_packed_weights_count_with_their_scales(tmp_path):
    with GraphBuilder("packed", tmp_path) as graph:
        x = graph.input("x", np.float32, [1, 128])
        blocks = graph.weight("blocks", np.zeros((64, 1, 128), np.uint8))
        scales = graph.weight("scales", np.ones((64, 1), np.float32))
        attributes = {"K": 128, "N": 64, "bits": 8, "block_size": 128}
        y = graph.op("MatMulNBits", x, blocks, scales, **attributes)
        graph.output(y, "y", np.float32, [1, 64])
    assert weight_bytes_per_run(tmp_path / "packed.onnx") == 64 * 128 + 64 * 4


def test_a_frame_of_the_real_codec_takes_five_billion_operations():
    config = read_codec_decoder_config(codec_config(RandomCheckpointRecipe(preset="real")))
    assert codec_operations_per_frame(config) == pytest.approx(4.95e9, rel=1e-3)
