"""The embedding tables: what is wrong with a file is named."""

import gc
import shutil
from pathlib import Path

import numpy as np
import pytest

from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError
from wyoming_qwen3tts.runtime.embeddings import (
    CODEC_TABLE,
    GROUP_TABLE,
    TEXT_TABLE,
    TableEmbeddings,
)


@pytest.fixture
def directory(tiny_bundle, tmp_path):
    source = tiny_bundle("0.6B-custom_voice")
    for name in (TEXT_TABLE, CODEC_TABLE, GROUP_TABLE):
        shutil.copyfile(source / name, tmp_path / name)
    return tmp_path


def test_a_frame_is_the_sum_of_its_groups(directory):
    embeddings = TableEmbeddings(directory)
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
        TableEmbeddings(directory)


def test_tables_of_different_models_are_refused(directory):
    np.save(directory / TEXT_TABLE, np.zeros((4, 3), np.float32))
    with pytest.raises(GraphInterfaceError, match="different widths"):
        TableEmbeddings(directory)
    np.save(directory / TEXT_TABLE, np.zeros(4, np.float32))
    with pytest.raises(GraphInterfaceError, match="dimensions"):
        TableEmbeddings(directory)


@pytest.mark.parametrize("stored_type", [np.float32, np.float16])
def test_rows_are_those_of_the_file(stored_type, directory):
    for name in (TEXT_TABLE, CODEC_TABLE, GROUP_TABLE):
        np.save(directory / name, np.load(directory / name).astype(stored_type))
    embeddings = TableEmbeddings(directory)
    for name, read in ((TEXT_TABLE, embeddings.text), (CODEC_TABLE, embeddings.codec)):
        table = np.load(directory / name).astype(np.float32)
        ids = [0, len(table) - 1, 5, 5]
        assert np.array_equal(read(ids), table[ids])
        assert read([]).shape == (0, table.shape[1])
        with pytest.raises((IndexError, BundleError)):
            read([len(table)])


def test_a_table_that_is_cut_short_meanwhile_is_an_error(directory):
    embeddings = TableEmbeddings(directory)
    last = len(np.load(directory / TEXT_TABLE)) - 1
    with (directory / TEXT_TABLE).open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1)
    with pytest.raises(BundleError, match=f"{TEXT_TABLE} has no row {last}"):
        embeddings.text([last])


def test_a_table_whose_rows_are_scattered_is_refused(directory):
    np.save(directory / TEXT_TABLE, np.asfortranarray(np.load(directory / TEXT_TABLE)))
    with pytest.raises(GraphInterfaceError, match=TEXT_TABLE):
        TableEmbeddings(directory)


DESCRIPTORS = Path("/proc/self/fd")


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="the system does not list descriptors")
def test_tables_that_nobody_uses_are_closed(directory):
    embeddings = TableEmbeddings(directory)
    gc.collect()
    with_tables = len(list(DESCRIPTORS.iterdir()))
    del embeddings
    gc.collect()
    assert len(list(DESCRIPTORS.iterdir())) == with_tables - 1
