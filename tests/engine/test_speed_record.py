"""Choosing a precision by what was measured."""

from dataclasses import replace

import pytest

from wyoming_qwen3tts.engine.speed_record import RECORD_NAME, SpeedRecord, choose
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.runtime.manifest import read_manifest


@pytest.fixture
def bundle(tiny_bundle, tmp_path):
    manifest = read_manifest(tiny_bundle("0.6B-custom_voice"))

    def make(precision):
        return InstalledBundle(tmp_path / f"cpu_{precision}", replace(manifest, recipe=precision))

    return make


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        ({}, "int8"),
        ({"int8": 0.6}, "int8"),
        ({"int8": 1.3}, "int4"),
        ({"int8": 1.3, "int4": 0.8}, "int4"),
        ({"int8": 1.3, "int4": 1.5}, "int8"),
        ({"int4": 0.4}, "int8"),
    ],
)
def test_int8_until_it_is_too_slow(measured, chosen, bundle, tmp_path):
    record = SpeedRecord(tmp_path)
    for precision, rtf in measured.items():
        record.note(bundle(precision), rtf)
    bundles = [bundle(precision) for precision in ("fp32", "int4", "int8")]
    assert choose(bundles, SpeedRecord(tmp_path)).manifest.recipe == chosen


def test_full_precision_is_no_way_out_of_slowness(bundle, tmp_path):
    SpeedRecord(tmp_path).note(bundle("int8"), 2.0)
    bundles = [bundle("fp32"), bundle("int8")]
    assert choose(bundles, SpeedRecord(tmp_path)).manifest.recipe == "int8"
    assert choose([bundle("fp32")], SpeedRecord(tmp_path)).manifest.recipe == "fp32"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"x": 1}', '{"tmp/cpu_int8": {"rtf": "fast"}}']
)
def test_a_damaged_record_is_as_good_as_none(content, bundle, tmp_path):
    (tmp_path / RECORD_NAME).write_text(content)
    record = SpeedRecord(tmp_path)
    assert record.rtf(bundle("int8")) is None
    record.note(bundle("int8"), 0.5)
    assert record.rtf(bundle("int8")) == 0.5


def test_a_bundle_that_was_built_anew_was_not_measured(bundle, tmp_path):
    record = SpeedRecord(tmp_path)
    record.note(bundle("int8"), 2.0)
    manifest = bundle("int8").manifest
    files = tuple(replace(file, sha256="0" * 64) for file in manifest.files)
    rebuilt = InstalledBundle(tmp_path / "cpu_int8", replace(manifest, files=files))
    assert record.rtf(rebuilt) is None


def test_a_place_that_cannot_be_written_is_no_failure(bundle, tmp_path, caplog):
    record = SpeedRecord(tmp_path / "missing")
    record.note(bundle("int8"), 0.5)
    assert record.rtf(bundle("int8")) is None
    assert "cannot be written" in caplog.text
