"""The talker of our own bundles: what its graph says, not its manifest, is the last word."""

import json
import shutil

import numpy as np
import onnx
import pytest

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.runtime.bundle import open_bundle

NUM_THREADS = 2


@pytest.fixture
def bundle(tiny_bundle, tmp_path):
    """A bundle whose manifest states more positions than its graph's rotary tables have."""
    directory = tmp_path / "cpu_fp32"
    shutil.copytree(tiny_bundle("0.6B-custom_voice"), directory)
    graph = onnx.load(directory / "talker.onnx", load_external_data=False)
    del graph.metadata_props[:]
    onnx.helper.set_model_props(graph, {"max_positions": "300"})
    (directory / "talker.onnx").write_bytes(graph.SerializeToString())
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["facts"]["max_positions"] = 100_000
    for file in manifest["files"]:
        file["bytes"] = (directory / file["path"]).stat().st_size
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def test_positions_end_where_the_rotary_tables_do(bundle):
    model = open_bundle(bundle, NUM_THREADS)
    cache = model.talker.new_cache(1, 1)
    model.talker.prefill(np.zeros((300, 64), np.float32), cache, 0)
    with pytest.raises(RequestError, match="300 positions"):
        model.talker.step(np.zeros((1, 64), np.float32), cache, [True])
