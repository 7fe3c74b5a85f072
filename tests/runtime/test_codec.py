"""The codec's runtime classes: state as a value, and the check of the graph's contract."""

import numpy as np
import pytest

from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.codec import build_codec_decoder
from wyoming_qwen3tts.builder.graphs.encoders import build_codec_encoder
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder
from wyoming_qwen3tts.errors import GraphInterfaceError, VoiceError
from wyoming_qwen3tts.runtime.graphs import OnnxCodecDecoder, encode_clip


@pytest.fixture(scope="session")
def directory(tiny_checkpoint, tmp_path_factory):
    """A directory with the codec graphs of a tiny Base model."""
    checkpoint = Checkpoint.open(tiny_checkpoint("0.6B-base"))
    directory = tmp_path_factory.mktemp("codec")
    build_codec_decoder(checkpoint.codec, checkpoint.codec_decoder, directory)
    build_codec_encoder(checkpoint.codec, checkpoint.codec_encoder, 16, directory)
    return directory


@pytest.fixture(scope="session")
def decoder(directory):
    path = directory / "codec_decoder.onnx"
    return OnnxCodecDecoder(path, 2)


@pytest.fixture
def codes():
    return np.random.default_rng(5).integers(0, 64, (20, 16))


def contents(state):
    return {name: value.numpy().copy() for name, value in state.values.items()}


def test_a_kept_state_is_a_fork(decoder, codes):
    _, fork = decoder.decode(codes[:8], decoder.initial_state())
    before = contents(fork)
    expected, _ = decoder.decode(codes[8:], fork)
    decoder.decode(codes[:5], fork)  # another way to go on from the same place
    again, _ = decoder.decode(codes[8:], fork)
    np.testing.assert_array_equal(again, expected)
    assert fork.position == 8
    for name, array in contents(fork).items():
        np.testing.assert_array_equal(array, before[name])


def test_forks_go_on_apart(decoder, codes):
    _, fork = decoder.decode(codes[:8], decoder.initial_state())
    one, other = decoder.decode(codes[8:10], fork), decoder.decode(codes[10:12], fork)
    assert not np.allclose(one[0], other[0])
    continued, _ = decoder.decode(codes[12:14], one[1])
    whole, _ = decoder.decode(codes[[*range(10), 12, 13]], decoder.initial_state())
    np.testing.assert_allclose(continued, whole[-len(continued) :], atol=1e-4)


def test_initial_state_is_zeros_and_an_empty_history(decoder):
    state = decoder.initial_state()
    assert state.position == 0
    for name, array in contents(state).items():
        assert not array.any()
        assert (array.size == 0) == name.startswith(("key_", "value_"))


def test_codes_of_another_integer_type_are_taken(decoder, codes):
    expected, _ = decoder.decode(codes[:2], decoder.initial_state())
    samples, _ = decoder.decode(codes[:2].astype(np.int32), decoder.initial_state())
    np.testing.assert_array_equal(samples, expected)


def test_history_stops_growing_at_the_window(decoder, codes):
    state = decoder.initial_state()
    lengths = []
    for frame in codes[:12]:
        _, state = decoder.decode(frame[None], state)
        lengths.append(state.values["key_0"].shape()[2])
    assert lengths == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]


def test_an_empty_clip_is_refused(directory):
    with pytest.raises(VoiceError, match="has 0 samples"):
        encode_clip(directory / "codec_encoder.onnx", 2, "codes", 1, np.zeros(0, np.float32))


def write_graph(directory, inputs, outputs):
    """Write a graph that has these inputs and gives these outputs, all of them zeros."""
    with GraphBuilder("wrong", directory) as graph:
        for name, dtype in inputs.items():
            graph.input(name, dtype, ["N"])
        for name in outputs:
            graph.output(graph.op("Identity", [0.0]), name, np.float32, [1])
    return graph.path


@pytest.mark.parametrize(
    ("inputs", "outputs", "missing"),
    [
        ({"codes": np.int64}, ["samples"], "position"),
        ({"codes": np.int64, "position": np.int64}, ["audio"], "samples"),
        (
            {"codes": np.int64, "position": np.int64, "memory": np.float32},
            ["samples"],
            "next_memory",
        ),
    ],
)
def test_a_decoder_of_another_shape_is_refused(inputs, outputs, missing, tmp_path):
    path = write_graph(tmp_path, inputs, outputs)
    with pytest.raises(GraphInterfaceError, match=f"wrong.onnx.*{missing}"):
        OnnxCodecDecoder(path, 2)


@pytest.mark.parametrize("output", ["codes", "x_vector"])
def test_an_encoder_of_another_shape_is_refused(output, tmp_path):
    path = write_graph(tmp_path, {"audio": np.float32}, ["result"])
    with pytest.raises(GraphInterfaceError, match=r"wrong.onnx.*samples"):
        encode_clip(path, 2, output, 1, np.zeros(4800, np.float32))
