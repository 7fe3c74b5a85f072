"""The demo voice's pipeline, as far as it needs no torch."""

import random
from collections import Counter

import pytest

from script._demo_voice.export import voice_codec_config, voice_model_config
from script._demo_voice.recipe import RECIPE, read_recipe
from script._demo_voice.texts import (
    Grammar,
    all_test_phrases,
    fingerprint,
    held_out_texts,
    is_held_out,
    letter_vocabulary,
    read_test_phrases,
    training_texts,
)
from tests.support.listening import heard_errors, plain_words, word_error_rate, word_errors
from tests.support.random_checkpoint.inventory import model_tensors
from wyoming_qwen3tts.builder.config import read_codec_decoder_config, read_talker_config

ONE_IN = 40


@pytest.fixture(scope="module")
def grammar():
    return Grammar()


@pytest.fixture(scope="module")
def recipe():
    return read_recipe()


def test_no_training_text_is_a_test_phrase_or_held_out(grammar):
    texts = training_texts(grammar, 800, 3, ONE_IN)
    marks = [fingerprint(text) for text in texts]
    assert len(set(marks)) == len(texts) == 800
    assert not set(marks) & {fingerprint(text) for text in all_test_phrases()}
    assert not any(is_held_out(mark, ONE_IN) for mark in marks)


def test_held_out_phrases_are_others_than_those_of_training(grammar):
    unseen = held_out_texts(grammar, 20, 3, ONE_IN)
    assert all(is_held_out(fingerprint(text), ONE_IN) for text in unseen)
    assert len({fingerprint(text) for text in unseen}) == 20


def test_the_same_seed_writes_the_same_texts(grammar):
    assert training_texts(grammar, 50, 1, ONE_IN) == training_texts(grammar, 50, 1, ONE_IN)
    assert training_texts(grammar, 50, 1, ONE_IN) != training_texts(grammar, 50, 2, ONE_IN)


def test_every_slot_of_every_template_can_be_filled(grammar):
    chance = random.Random(5)
    kinds = Counter()
    for _ in range(2000):
        text = grammar.phrase(chance)
        assert "{" not in text
        assert text[0] == text[0].upper()
        kinds[text[-1]] += 1
    assert {".", "?", "!"} <= set(kinds)


def test_a_slot_that_there_is_not_is_named(tmp_path):
    path = tmp_path / "phrases.yaml"
    path.write_text('weights: {home: 1}\nhome: ["Open the {dor}."]\nslots: {door: [gate]}\n')
    with pytest.raises(KeyError, match="dor"):
        Grammar(path)


def test_there_are_enough_test_phrases_and_each_is_another():
    phrases = all_test_phrases()
    assert len({fingerprint(text) for text in phrases}) == len(phrases) >= 60
    assert len(read_test_phrases()["free"]) >= 20


@pytest.mark.parametrize(
    ("wanted", "heard", "errors"),
    [
        ("It is 5:40.", "It is 540.", 0),
        ("It is 5:40 p.m.", "it is 5.40pm", 0),
        ("Set it to 54 percent.", "Set it to 54%", 0),
        ("Okay, Anna.", "OK Anna", 0),
        ("It is 540 watts.", "It is 540 watts.", 0),
        ("It is 5:40.", "It is 541.", 1),
        ("The door is open.", "The door is", 1),
        ("The door is open.", "The floor is wide open", 2),
        ("The door is open.", "", 4),
    ],
)
def test_errors_are_counted_in_words_and_not_in_spellings(wanted, heard, errors):
    assert heard_errors(wanted, heard) == errors


def test_the_rate_is_over_all_words_of_all_phrases():
    pairs = [("The door is open.", "The door is open."), ("Stop now.", "Stop it.")]
    assert word_error_rate(pairs) == pytest.approx(1 / 6)
    assert word_errors(plain_words("a b c"), []) == 3


def test_letters_and_frames_come_at_about_the_same_rate():
    vocabulary = letter_vocabulary()
    assert "assistant" in vocabulary.ids
    assert len(vocabulary.merges) < 10


def test_the_official_reader_takes_the_voices_configuration(recipe):
    config, codec = voice_model_config(recipe), voice_codec_config(recipe.codec)
    talker = read_talker_config(config)
    assert talker.num_code_groups == recipe.codec.num_groups
    assert read_codec_decoder_config(codec).codebook_size == recipe.codec.codebook_size
    assert (
        sum(config["talker_config"]["rope_scaling"]["mrope_section"])
        == recipe.language.head_width // 2
    )
    assert all(spec.size for spec in model_tensors(config))


@pytest.mark.parametrize("change", [("  width: 256", "  widht: 256"), ("seed: 20", "sead: 20")])
def test_a_recipe_with_an_unknown_key_is_refused(tmp_path, change):
    path = tmp_path / "recipe.yaml"
    text = RECIPE.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ValueError, match=change[1].split(":")[0].strip()):
        read_recipe(path)
