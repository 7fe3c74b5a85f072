"""The numpy oracle gives what the official PyTorch package gave, so that tests may trust it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracle.bpe import OracleTokenizer
from tests.oracle.speaker_encoder import log_mel, mel_filters
from tests.parity import cases
from tests.parity.comparison import as_codes, largest_error
from tests.parity.golden import CODES_FILE, SAMPLE_STEP, TOKENS_FILE, read_case
from tests.parity.oracle_subject import OracleSubject
from tests.support.tiny_checkpoint import TINY_CHECKPOINTS, write_tiny_checkpoint
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer

GOLDEN = Path(__file__).parent / "golden"
# script/parity speaks every case; these are of each kind of voice in both layouts.
CASE_STEP = 9


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return content


OFFICIAL = load(CODES_FILE)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("oracle")

    def get(name: str) -> Path:
        size, model_type = TINY_CHECKPOINTS[name]
        if not (root / name).exists():
            write_tiny_checkpoint(
                root / name, model_type, size, seed=OFFICIAL["provenance"]["seed"]
            )
        return root / name

    return get


@pytest.fixture(scope="module")
def oracle(checkpoint: Callable[[str], Path]) -> Callable[[str], OracleSubject]:
    opened: dict[str, OracleSubject] = {}

    def get(name: str) -> OracleSubject:
        if name not in opened:
            opened[name] = OracleSubject(checkpoint(name))
        return opened[name]

    return get


def test_golden_cases_are_those_of_the_parity_script() -> None:
    recorded = [read_case(entry) for entry in OFFICIAL["cases"]]

    assert recorded == cases.all_cases()
    assert len(recorded) >= 160


def test_greedy_codes(oracle: Callable[[str], OracleSubject]) -> None:
    entries = OFFICIAL["cases"][::CASE_STEP]

    assert {entry["checkpoint"] for entry in entries} == set(TINY_CHECKPOINTS)
    for entry in entries:
        case = read_case(entry)
        codes = oracle(case.checkpoint).greedy_codes(case)
        np.testing.assert_array_equal(codes, as_codes(entry["codes"]), err_msg=str(case))


@pytest.mark.parametrize("chunk_frames", [cases.DECODER_FRAMES, *cases.DECODER_CHUNKS])
def test_decoder_samples(oracle: Callable[[str], OracleSubject], chunk_frames: int) -> None:
    samples = oracle("0.6B-base").decode(cases.decoder_codes(), chunk_frames)

    assert len(samples) == cases.DECODER_FRAMES * 1920
    expected = np.array(OFFICIAL["decoder_samples"])
    assert largest_error(expected, samples[::SAMPLE_STEP]) < 1e-5


@pytest.mark.parametrize("num_samples", cases.ENCODER_SAMPLES)
def test_encoder_codes(oracle: Callable[[str], OracleSubject], num_samples: int) -> None:
    codes = oracle("0.6B-base").encode(cases.clip(num_samples))

    expected = as_codes(OFFICIAL["encoder_codes"][str(num_samples)])
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("name", [name for name in TINY_CHECKPOINTS if name.endswith("base")])
def test_x_vectors(oracle: Callable[[str], OracleSubject], name: str) -> None:
    for num_samples in cases.SPEAKER_SAMPLES:
        x_vector = oracle(name).embed(cases.clip(num_samples))
        expected = np.array(OFFICIAL["x_vectors"][f"{name}_{num_samples}"])
        assert largest_error(expected, x_vector) < 1e-5, num_samples


def test_tokens_of_official_texts(checkpoint: Callable[[str], Path]) -> None:
    directory = checkpoint("0.6B-custom_voice")
    tokenizer, plain = BpeTokenizer(directory), OracleTokenizer(directory)
    texts = load(TOKENS_FILE)["texts"]

    assert len(texts) >= 250
    for entry in texts:
        assert tokenizer.encode_template(entry["text"]) == entry["ids"], entry["text"]
        assert plain.encode_template(entry["text"]) == entry["ids"], entry["text"]


def test_mel_filters_have_unit_area_and_log_spacing() -> None:
    filters = mel_filters()
    areas = filters.sum(axis=1) * (12000 / 512)
    peaks = filters.argmax(axis=1)

    assert filters.shape == (128, 513)
    np.testing.assert_allclose(areas[40:], 1, rtol=0.1)
    assert (np.diff(peaks) >= 0).all()
    assert peaks[-1] - peaks[-2] > 3 * (peaks[10] - peaks[9])


def test_log_mel_has_a_frame_per_hop() -> None:
    assert log_mel(cases.clip(5000)).shape == (5000 // 256, 128)
    tone = np.sin(2 * np.pi * 3000 * np.arange(4096) / 24000).astype(np.float32)
    loudest = log_mel(tone)[8].argmax()

    assert mel_filters()[loudest].argmax() == 3000 / 24000 * 1024
