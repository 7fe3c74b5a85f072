"""The codec encoder graph against the numpy oracle: equal codes at any length."""

from functools import partial

import numpy as np
import pytest

from tests.oracle.codec_encoder import OracleCodecEncoder
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.codec import IGNORED_TENSORS
from wyoming_qwen3tts.builder.graphs.encoders import build_codec_encoder, ignored_encoder_tensors
from wyoming_qwen3tts.errors import CheckpointError
from wyoming_qwen3tts.runtime.graphs import encode_clip

FRAME = 1920
# From less than a hop of the first stage to more than the configured attention window of 10
# positions (5 frames), on and beside multiples of a frame and of half a frame.
LENGTHS = [1, 3, 7, 959, 960, 961, 1919, FRAME, 1921, 5 * FRAME - 1, 24000, 40001]


@pytest.fixture(scope="session")
def encoders(tmp_path_factory):
    """Return a function: number of code groups -> graph and oracle."""
    made = {}

    def get(num_groups=16):
        if num_groups not in made:
            root = tmp_path_factory.mktemp("codec_encoder")
            source = write_tiny_checkpoint(root / "checkpoint", "base", num_code_groups=num_groups)
            checkpoint = Checkpoint.open(source)
            build_codec_encoder(checkpoint.codec, checkpoint.codec_encoder, num_groups, root)
            path = root / "codec_encoder.onnx"
            encoder = partial(encode_clip, path, 2, "codes", 1)
            made[num_groups] = encoder, OracleCodecEncoder(source)
        return made[num_groups]

    return get


def noise(length):
    rng = np.random.default_rng(length)
    return (0.2 * rng.standard_normal(length)).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
def test_codes_equal_the_oracle(length, encoders):
    encoder, oracle = encoders()
    codes = encoder(noise(length))
    assert codes.dtype == np.int64
    assert codes.shape == (-(-length // FRAME), 16)
    np.testing.assert_array_equal(codes, oracle.encode(noise(length)))


@pytest.mark.parametrize("num_groups", [4, 8])
def test_fewer_groups(num_groups, encoders):
    encoder, oracle = encoders(num_groups)
    samples = noise(9001)
    np.testing.assert_array_equal(encoder(samples), oracle.encode(samples))


def test_codes_are_varied(encoders):
    encoder, _ = encoders()
    codes = encoder(noise(40001))
    assert all(len(set(column)) > 3 for column in codes.T)


def test_a_tie_goes_to_the_first_index(tmp_path):
    """Entries that training never used are equal to others where the checkpoint repeats them."""
    source = write_tiny_checkpoint(tmp_path / "checkpoint", "base")
    checkpoint = Checkpoint.open(source)
    build_codec_encoder(checkpoint.codec, checkpoint.codec_encoder, 16, tmp_path)
    repeat_centroids(tmp_path / "codec_encoder.onnx", source)
    path = tmp_path / "codec_encoder.onnx"
    codes = encode_clip(path, 2, "codes", 1, noise(40001))
    half = checkpoint.codec_encoder.codebook_size // 2
    assert codes.max() < half


def repeat_centroids(path, source):
    """Make the second half of every codebook in the data file a copy of the first half."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    data = path.with_suffix(".onnx.data")
    blob = bytearray(data.read_bytes())
    for tensor in model.graph.initializer:
        if not tensor.name.endswith((".transposed", ".norms", ".centroids")):
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        start, size = int(entry["offset"]), int(entry["length"])
        dtype = np.float32 if tensor.name.endswith(".centroids") else np.float64
        array = np.frombuffer(blob, dtype, size // dtype().itemsize, start).reshape(tensor.dims)
        array = array.copy()
        view = array.T if tensor.name.endswith(".transposed") else array
        half = len(view) // 2
        view[half:] = view[:half]
        blob[start : start + size] = array.tobytes()
    data.write_bytes(blob)


def test_every_tensor_is_read_or_ignored_for_a_reason(tmp_path):
    checkpoint = Checkpoint.open(write_tiny_checkpoint(tmp_path / "checkpoint", "base"))
    config = checkpoint.codec_encoder
    build_codec_encoder(checkpoint.codec, config, 16, tmp_path)
    ignored = ignored_encoder_tensors(config, 16)
    checkpoint.codec.finish({**ignored, **IGNORED_TENSORS, "decoder.*": "another component"})
    # A group more needs a quantizer that was not read.
    with pytest.raises(CheckpointError, match="2 tensors"):
        checkpoint.codec.finish(
            {**ignored_encoder_tensors(config, 17), "decoder.*": "another component"}
        )


def test_more_groups_than_quantizers_are_refused(tmp_path):
    checkpoint = Checkpoint.open(write_tiny_checkpoint(tmp_path / "checkpoint", "base"))
    with pytest.raises(CheckpointError, match="acoustic"):
        build_codec_encoder(checkpoint.codec, checkpoint.codec_encoder, 21, tmp_path)
