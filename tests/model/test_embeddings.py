"""The embedding tables: what is wrong with a file is named."""

import shutil

import numpy as np
import pytest

from wyoming_qwen3tts.errors import BundleError, ContractError
from wyoming_qwen3tts.model.embeddings import CODEC_TABLE, GROUP_TABLE, TEXT_TABLE, MappedEmbeddings


@pytest.fixture
def directory(tiny_bundle, tmp_path):
    source = tiny_bundle("0.6B-custom_voice")
    for name in (TEXT_TABLE, CODEC_TABLE, GROUP_TABLE):
        shutil.copyfile(source / name, tmp_path / name)
    return tmp_path


def test_a_frame_is_the_sum_of_its_groups(directory):
    embeddings = MappedEmbeddings(directory)
    codec, groups = np.load(directory / CODEC_TABLE), np.load(directory / GROUP_TABLE)
    codes = np.random.default_rng(0).integers(0, 64, (3, 16))
    wanted = [codec[row[0]] + sum(groups[i, row[i + 1]] for i in range(15)) for row in codes]
    np.testing.assert_allclose(embeddings.frames(codes), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [TEXT_TABLE, CODEC_TABLE, GROUP_TABLE])
@pytest.mark.parametrize("content", [b"", b"no table", None])
def test_a_table_that_cannot_be_read_is_named(name, content, directory):
    path = directory / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleError, match=name):
        MappedEmbeddings(directory)


def test_tables_of_different_models_are_refused(directory):
    np.save(directory / TEXT_TABLE, np.zeros((4, 3), np.float32))
    with pytest.raises(ContractError, match="different widths"):
        MappedEmbeddings(directory)
    np.save(directory / TEXT_TABLE, np.zeros(4, np.float32))
    with pytest.raises(ContractError, match="dimensions"):
        MappedEmbeddings(directory)
