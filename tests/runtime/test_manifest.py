import dataclasses
import json
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wyoming_qwen3tts
from wyoming_qwen3tts.errors import CheckpointError, ManifestError
from wyoming_qwen3tts.runtime.manifest import (
    FORMAT_VERSION,
    BundleFile,
    BundleSource,
    CodecIds,
    GenerationDefaults,
    Manifest,
    ModelFacts,
    TextIds,
    facts_from_checkpoint,
    read_manifest,
)

COUNTS = st.integers(1, 10_000_000)
# onnxruntime sessions of other tests make this process flush subnormal numbers to zero.
NUMBERS = st.floats(0.0, 1e7, allow_nan=False, allow_infinity=False, allow_subnormal=False)
NAMES = st.text(string.printable + "äß中", max_size=12)


def ids(kind):
    names = [field.name for field in dataclasses.fields(kind)]
    return st.builds(kind, **dict.fromkeys(names, COUNTS))


GENERATION = st.builds(
    GenerationDefaults,
    do_sample=st.booleans(),
    predictor_do_sample=st.booleans(),
    temperature=NUMBERS,
    top_p=NUMBERS,
    repetition_penalty=NUMBERS,
    predictor_temperature=NUMBERS,
    predictor_top_p=NUMBERS,
    top_k=COUNTS,
    predictor_top_k=COUNTS,
    max_new_tokens=COUNTS,
)
FACTS = st.builds(
    ModelFacts,
    model_type=st.sampled_from(["custom_voice", "base", "voice_design"]),
    model_size=NAMES,
    hidden_size=COUNTS,
    num_code_groups=COUNTS,
    codebook_size=COUNTS,
    max_positions=COUNTS,
    sample_rate_hz=COUNTS,
    samples_per_frame=COUNTS,
    text_ids=ids(TextIds),
    codec_ids=ids(CodecIds),
    languages=st.dictionaries(NAMES, COUNTS, max_size=2),
    speakers=st.dictionaries(NAMES, COUNTS, max_size=2),
    dialects=st.dictionaries(NAMES, NAMES, max_size=2),
    generation=GENERATION,
)
MANIFESTS = st.builds(
    Manifest,
    format_version=st.just(FORMAT_VERSION),
    name=NAMES,
    device=st.just("cpu"),
    recipe=NAMES,
    precision=st.dictionaries(NAMES, st.dictionaries(NAMES, NAMES, max_size=2), max_size=2),
    facts=FACTS,
    source=st.builds(
        BundleSource,
        repo=st.none() | NAMES,
        revision=st.none() | NAMES,
        model_sha256=NAMES,
    ),
    builder_version=NAMES,
    files=st.lists(
        st.builds(BundleFile, path=st.sampled_from(["a", "b-1.onnx"]), bytes=COUNTS, sha256=NAMES),
        max_size=2,
    ).map(tuple),
)


@settings(deadline=None, max_examples=100)
@given(MANIFESTS)
def test_round_trip(manifest):
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.fixture
def values():
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="a",
        device="cpu",
        recipe="int8",
        precision={"talker": {"layers": "int8"}},
        facts=ModelFacts(
            model_type="base",
            model_size="0.6B",
            hidden_size=1,
            num_code_groups=16,
            codebook_size=2,
            max_positions=3,
            sample_rate_hz=4,
            samples_per_frame=5,
            text_ids=TextIds(*range(6)),
            codec_ids=CodecIds(*range(7)),
            languages={"german": 1},
            speakers={},
            dialects={},
            generation=GenerationDefaults(True, 0.9, 50, 1.0, 1.05, True, 0.9, 50, 1.0, 8192),
        ),
        source=BundleSource(None, None, "abc"),
        builder_version="1",
        files=(BundleFile("x.onnx", 1, "abc"),),
    )
    return json.loads(manifest.to_json())


def parse(values):
    return Manifest.from_json(json.dumps(values), "manifest.json")


def test_whole_numbers_are_welcome_where_fractions_may_be(values):
    values["facts"]["generation"]["temperature"] = 1
    assert parse(values).facts.generation.temperature == 1.0


def test_keys_of_earlier_manifests_are_passed_over(values):
    assert parse(values | {"talker": {"num_layers": 28}, "quantization": []}) == parse(values)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["surprise"], 1, "unknown key 'surprise'"),
        (["facts", "surprise"], 1, "facts has the unknown key 'surprise'"),
        (["files", 0, "surprise"], 1, r"files\[0\] has the unknown key"),
        (["name"], 3, "name is 3"),
        (["device"], "toaster", "device is 'toaster'"),
        (["device"], "cuda", "device is 'cuda', expected one of 'cpu'"),
        (["facts", "hidden_size"], True, "hidden_size is True"),
        (["facts", "hidden_size"], 1.0, "hidden_size is 1.0"),
        (["facts", "languages"], [], "languages"),
        (["facts", "languages", "german"], "x", r"languages\.german is 'x'"),
        (["facts", "generation", "do_sample"], 1, "do_sample is 1"),
        (["files"], {}, "files"),
        (["files", 0], "x", r"files\[0\] is 'x'"),
        (["source", "repo"], 5, "repo is 5"),
    ],
)
def test_wrong_values_name_their_key(values, path, value, message):
    section = values
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    with pytest.raises(ManifestError, match=message) as caught:
        parse(values)
    assert "build or fetch the bundle again" in str(caught.value)


HOSTILE = [
    ("facts.hidden_size", 0),
    ("facts.num_code_groups", -1),
    ("facts.max_positions", 10**12),
    ("facts.text_ids.tts_pad", -1),
    ("facts.speakers.ryan", 10**30),
    ("facts.languages.english", -5),
    ("facts.generation.max_new_tokens", 10**12),
    ("facts.generation.temperature", float("nan")),
    ("facts.generation.top_p", float("inf")),
]


@pytest.mark.parametrize(("key", "value"), HOSTILE)
def test_numbers_that_become_sizes_and_rows_are_checked(values, key, value):
    """B19: a manifest may come from anywhere."""
    *parents, name = key.split(".")
    holder = values
    for parent in parents:
        holder = holder[parent]
    holder[name] = value
    with pytest.raises(ManifestError, match=f"{name} is .*, which no model has"):
        Manifest.from_json(json.dumps(values))


@pytest.mark.parametrize("path", ["../escape", "/etc/passwd", "a/b", "..", "."])
def test_file_names_lead_to_no_other_directory(values, path):
    values["files"] = [{"path": path, "bytes": 1, "sha256": ""}]
    with pytest.raises(ManifestError, match="names the file"):
        Manifest.from_json(json.dumps(values))


def test_every_missing_key_is_named(values):
    for key in ("name", "recipe", "facts", "source", "files"):
        broken = {name: value for name, value in values.items() if name != key}
        with pytest.raises(ManifestError, match=key):
            parse(broken)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, None, "1"])
def test_other_format_versions_are_refused_before_anything_else(version):
    with pytest.raises(ManifestError, match=r"format version.*build or fetch the bundle again"):
        parse({"format_version": version, "unknown": 1})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0"])
def test_other_texts_are_refused(text):
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        Manifest.from_json(text)


def test_the_demo_voice_is_read():
    manifest = read_manifest(Path(wyoming_qwen3tts.__file__).parent / "demo_voice")
    assert manifest.device == "cpu"
    assert manifest.facts.speakers


CONFIGURATION = {
    "tts_model_type": "base",
    "tts_model_size": "0b6",
    **{f"{name.name}_token_id": 1 for name in dataclasses.fields(TextIds)},
    "talker_config": {
        "hidden_size": 1,
        "num_code_groups": 16,
        "code_predictor_config": {"vocab_size": 8},
        "max_position_embeddings": 9,
        **{f"codec_{name.name}_id": 2 for name in dataclasses.fields(CodecIds)},
        "codec_eos_token_id": 3,
        "codec_language_id": {"german": 1},
        "spk_id": {"Ryan": 4},
        "spk_is_dialect": {"Ryan": False},
    },
}
CODEC = {"output_sample_rate": 24_000, "decode_upsample_rate": 1920}
GENERATION_CONFIG = {
    "do_sample": True,
    "temperature": 1,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "max_new_tokens": 8192,
}


def test_facts_of_a_checkpoint():
    facts = facts_from_checkpoint(CONFIGURATION, CODEC, GENERATION_CONFIG)
    assert (facts.model_size, facts.codec_ids.eos, facts.codec_ids.pad) == ("0.6B", 3, 2)
    assert (facts.speakers, facts.dialects) == ({"ryan": 4}, {})
    assert facts.generation.temperature == 1.0
    assert facts.generation.non_streaming_mode is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tts_model_size": None}, "model_size is None"),
        ({"tts_model_type": "singer"}, "model_type is 'singer', expected one of 'custom_voice'"),
        ({"im_start_token_id": "1"}, "im_start is '1'"),
        ({"talker_config": None}, "checkpoint"),
        ({"talker_config": {}}, "no key 'hidden_size'"),
    ],
)
def test_a_damaged_configuration_is_named(change, message):
    with pytest.raises(CheckpointError, match=message):
        facts_from_checkpoint(CONFIGURATION | change, CODEC, GENERATION_CONFIG)


def test_files_are_read_and_named(tmp_path, values):
    (tmp_path / "manifest.json").write_text(json.dumps(values), encoding="utf-8")
    assert read_manifest(tmp_path).name == "a"
    with pytest.raises(ManifestError, match="absent"):
        read_manifest(tmp_path / "absent")
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match="cannot be read"):
        read_manifest(tmp_path)
