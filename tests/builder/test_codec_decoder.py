"""The codec decoder graph against the numpy oracle, however the frames are cut."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle.codec_decoder import OracleCodecDecoder
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.codec import IGNORED_TENSORS, build_codec_decoder
from wyoming_qwen3tts.errors import CheckpointError
from wyoming_qwen3tts.runtime.graphs import OnnxCodecDecoder, open_session

SAMPLES_PER_FRAME = 1920
# More frames than attention sees (9) and than one run takes (8), so that both limits are crossed.
NUM_FRAMES = 31
TOLERANCE = 1e-4


class Case(NamedTuple):
    """A tiny decoder, codes, and what the oracle makes of them."""

    decoder: OnnxCodecDecoder
    codes: np.ndarray
    expected: np.ndarray
    directory: Path


@pytest.fixture(scope="session")
def case(tmp_path_factory) -> Callable[..., Case]:
    """Return a function: number of code groups -> its case."""
    made: dict[int, Case] = {}

    def get(num_groups: int = 16) -> Case:
        if num_groups not in made:
            root = tmp_path_factory.mktemp("codec_decoder")
            source = write_tiny_checkpoint(root / "checkpoint", num_code_groups=num_groups)
            checkpoint = Checkpoint.open(source)
            build_codec_decoder(checkpoint.codec, checkpoint.codec_decoder, root)
            path = root / "codec_decoder.onnx"
            decoder = OnnxCodecDecoder(path, 2)
            shape = (NUM_FRAMES, num_groups)
            codes = np.random.default_rng(num_groups).integers(
                0, checkpoint.codec_decoder.codebook_size, shape
            )
            codes[3] = checkpoint.codec_decoder.codebook_size - 1  # an entry that was never used
            made[num_groups] = Case(decoder, codes, OracleCodecDecoder(source).decode(codes), root)
        return made[num_groups]

    return get


def streamed(decoder, codes, sizes):
    """Decode codes in chunks of the given sizes, the last one repeated until the end."""
    state, pieces, start, index = decoder.initial_state(), [], 0, 0
    while start < len(codes):
        size = sizes[min(index, len(sizes) - 1)]
        samples, state = decoder.decode(codes[start : start + size], state)
        pieces.append(samples)
        start, index = start + size, index + 1
    return np.concatenate(pieces)


@pytest.mark.parametrize("num_groups", [4, 8, 16])
@pytest.mark.parametrize("size", [1, 3, 7, NUM_FRAMES])
def test_chunks_of_any_size_equal_the_oracle(num_groups, size, case):
    decoder, codes, expected, _ = case(num_groups)
    samples = streamed(decoder, codes, [size])
    assert samples.dtype == np.float32
    assert samples.shape == (NUM_FRAMES * SAMPLES_PER_FRAME,)
    np.testing.assert_allclose(samples, expected, atol=TOLERANCE)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 14), min_size=1, max_size=8))
def test_any_partition_equals_the_whole(sizes, case):
    decoder, codes, expected, _ = case(4)
    np.testing.assert_allclose(streamed(decoder, codes, sizes), expected, atol=TOLERANCE)


def test_the_output_uses_the_range_and_is_not_silence(case):
    _, _, expected, _ = case(16)
    assert 0.05 < expected.std() < 1.0


def test_graph_may_decode_all_frames_in_one_run(case):
    decoder, codes, expected, root = case(16)
    session = open_session(root / "codec_decoder.onnx", num_threads=2)
    feeds = {name: value.numpy() for name, value in decoder.initial_state().values.items()}
    (samples,) = session.run(["samples"], {**feeds, "codes": codes, "position": np.array(0)})
    np.testing.assert_allclose(samples, expected, atol=TOLERANCE)


def test_late_positions_give_the_same_sound(case):
    """Only differences of positions matter, so an hour of speech must not wear the angles out."""
    decoder, codes, _, root = case(16)
    session = open_session(root / "codec_decoder.onnx", num_threads=2)
    feeds = {name: value.numpy() for name, value in decoder.initial_state().values.items()}
    early, late = (
        session.run(["samples"], {**feeds, "codes": codes, "position": np.array(position)})[0]
        for position in (0, 100_003)
    )
    np.testing.assert_allclose(early, late, atol=TOLERANCE)


def test_every_tensor_is_read_or_ignored_for_a_reason(tmp_path):
    checkpoint = Checkpoint.open(write_tiny_checkpoint(tmp_path / "checkpoint"))
    build_codec_decoder(checkpoint.codec, checkpoint.codec_decoder, tmp_path)
    checkpoint.codec.finish({**IGNORED_TENSORS, "encoder.*": "another component"})
    with pytest.raises(CheckpointError, match=r"2 tensors .*input_proj"):
        checkpoint.codec.finish({"encoder.*": "another component"})


def noise_ratio_db(samples, reference):
    return 10 * np.log10((reference**2).mean() / ((samples - reference) ** 2).mean())


def calibration_codes(checkpoint):
    config = checkpoint.codec_decoder
    shape = (64, config.num_quantizers)
    return np.random.default_rng(0).integers(0, config.codebook_size, shape)


@pytest.fixture(scope="module")
def int8_decoder(case):
    """The int8 decoder of the case with 16 groups."""
    root = case(16).directory
    directory = root / "int8"
    directory.mkdir()
    checkpoint = Checkpoint.open(root / "checkpoint")
    codes = calibration_codes(checkpoint)
    build_codec_decoder(checkpoint.codec, checkpoint.codec_decoder, directory, codes)
    path = directory / "codec_decoder.onnx"
    return OnnxCodecDecoder(path, 2), directory


def test_int8_is_near_float32(int8_decoder, case):
    _, codes, expected, _ = case(16)
    samples = streamed(int8_decoder[0], codes, [NUM_FRAMES])
    assert noise_ratio_db(samples, expected) > 29


@pytest.mark.parametrize("size", [1, 3, 7])
def test_int8_in_chunks_differs_by_less_than_its_rounding(size, int8_decoder, case):
    """A last bit of float32 can turn a rounding, and that one turns the next ones."""
    _, codes, expected, _ = case(16)
    decoder, _ = int8_decoder
    whole, chunks = streamed(decoder, codes, [NUM_FRAMES]), streamed(decoder, codes, [size])
    np.testing.assert_allclose(
        noise_ratio_db(chunks, expected), noise_ratio_db(whole, expected), atol=1
    )
    assert noise_ratio_db(chunks, whole) > noise_ratio_db(whole, expected) + 6


def test_int8_builds_are_equal_and_leave_nothing_behind(int8_decoder, case, tmp_path):
    root = case(16).directory
    checkpoint = Checkpoint.open(root / "checkpoint")
    codes = calibration_codes(checkpoint)
    build_codec_decoder(checkpoint.codec, checkpoint.codec_decoder, tmp_path, codes)
    names = ["codec_decoder.onnx", "codec_decoder.onnx.data"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (int8_decoder[1] / name).read_bytes()
