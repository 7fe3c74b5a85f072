import numpy as np
import pytest

from wyoming_qwen3tts.builder import tables
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.errors import BuildError


@pytest.mark.parametrize("chunk_rows", [7, 4096])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float16, 4e-3)])
def test_tables_equal_the_oracle(dtype, tolerance, chunk_rows, tiny, oracle, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_CHUNK_ROWS", chunk_rows)
    model = oracle("1.7B", 4)
    checkpoint = Checkpoint.open(tiny("1.7B", 4))
    tables.build_tables(checkpoint.main, checkpoint.talker, dtype, tmp_path)
    text, codec, groups = (np.load(tmp_path / name, mmap_mode="r") for name in tables.TABLE_FILES)
    assert text.dtype == codec.dtype == groups.dtype == dtype
    config = model.talker_config
    expected = model.text_embeddings(range(config["text_vocab_size"]))
    np.testing.assert_allclose(text, expected, atol=tolerance)
    expected = model.codec_embeddings(range(config["vocab_size"]))
    np.testing.assert_allclose(codec, expected, atol=tolerance)
    assert groups.shape == (3, model.codebook_size, config["hidden_size"])
    frame = [1, 2, 3, 4]
    total = codec[1] + sum(groups[index, code] for index, code in enumerate(frame[1:]))
    np.testing.assert_allclose(total, model.frame_embedding(frame), atol=4 * tolerance)


@pytest.mark.parametrize("value", [1e5, np.nan])
def test_values_that_half_precision_cannot_hold_are_refused(value, tiny, tmp_path):
    checkpoint = Checkpoint.open(tiny())
    read = checkpoint.main.read

    def spoilt(name, shape):
        tensor = read(name, shape)
        if name == "talker.model.codec_embedding.weight":
            tensor[3, 2] = value
        return tensor

    checkpoint.main.read = spoilt
    with pytest.raises(BuildError, match=r"codec_embedding\.npy.*fp32"):
        tables.build_tables(checkpoint.main, checkpoint.talker, np.float16, tmp_path)
