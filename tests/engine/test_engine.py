"""The server's speech source over tiny models: voices, sentences, order, cancelling, limits."""

import asyncio
import logging
import re
import shutil
from contextlib import aclosing

import pytest

from tests.conftest import NUM_THREADS
from tests.support.voice_fixtures import TRANSCRIPT, clip_bytes, write_voice
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine, warm_up
from wyoming_qwen3tts.engine.worker import SynthesisWorker
from wyoming_qwen3tts.errors import BusyError, ConfigError, RequestError
from wyoming_qwen3tts.protocol.backend import Conversation, SpeechRequest
from wyoming_qwen3tts.synthesis.request import default_options


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_bundle):
    """A data directory with one model of each type."""
    root = tmp_path_factory.mktemp("data")
    for name in ("0.6B-custom_voice", "0.6B-base", "1.7B-voice_design"):
        source = tiny_bundle(name)
        shutil.copytree(source, root / source.parent.name / source.name)
    return root


def config_for(data_dir, **settings):
    return Config(data_dirs=(str(data_dir),), threads=NUM_THREADS, **settings)


async def pieces(*texts):
    for text in texts:
        yield text


async def speak(source, request, *texts):
    async with aclosing(source.stream(request, pieces(*texts))) as chunks:
        return [chunk async for chunk in chunks]


def pcm(chunks):
    return b"".join(chunk.pcm16() for chunk in chunks)


async def test_voices_of_all_models_are_listed_together(data_dir):
    async with open_engine(config_for(data_dir)) as source:
        voices = {voice.name: voice for voice in await source.voices()}
    assert {"ryan", "vivian", "designed"} <= set(voices)
    assert voices["ryan"].languages == ("zh", "en", "ja", "ko", "de", "fr", "ru", "pt", "es", "it")


async def test_a_seed_makes_whole_answers_repeatable(data_dir):
    async with open_engine(config_for(data_dir, seed=7)) as source:
        request = SpeechRequest(voice="ryan")
        text = "Hello there. Turn on the light in the kitchen, please."
        first = await speak(source, request, text)
        cut = await speak(source, request, *(text[i : i + 5] for i in range(0, len(text), 5)))
    assert pcm(first) == pcm(cut)
    assert {chunk.sample_rate_hz for chunk in first} == {24000}


@pytest.mark.parametrize("text", ["", "   ", "...", "\n\n", "😄"])
async def test_nothing_to_say_is_a_short_silence(data_dir, text):
    async with open_engine(config_for(data_dir)) as source:
        chunks = await speak(source, SpeechRequest(voice="ryan"), text)
    assert 0.05 < sum(chunk.duration_s for chunk in chunks) < 0.5
    assert not any(chunk.samples.any() for chunk in chunks)


async def test_audio_starts_before_the_text_has_ended(data_dir):
    is_spoken = asyncio.Event()

    async def slow_text():
        yield "Hello there, this is the first sentence. "
        # The rest comes only when the first sentence was heard.
        await asyncio.wait_for(is_spoken.wait(), 20)
        yield "And this is the second one."

    async with open_engine(config_for(data_dir)) as source:
        request = SpeechRequest(voice="ryan")
        async with aclosing(source.stream(request, slow_text())) as chunks:
            num_chunks = 0
            async for _ in chunks:
                num_chunks += 1
                is_spoken.set()
    assert num_chunks > 1


async def test_a_finished_sentence_is_not_held_back_while_the_next_is_awaited(data_dir):
    is_spoken = asyncio.Event()

    async def stalled_text():
        yield "Hello there, I am done."  # no space behind it: more could follow the full stop
        await asyncio.wait_for(is_spoken.wait(), 20)

    async with (
        open_engine(config_for(data_dir)) as source,
        aclosing(source.stream(SpeechRequest(voice="ryan"), stalled_text())) as chunks,
    ):
        async for _ in chunks:
            is_spoken.set()
    assert is_spoken.is_set()


async def test_unknown_voices_are_an_error_of_the_library_that_lists_those_there_are(data_dir):
    async with open_engine(config_for(data_dir), is_server=False) as source:
        with pytest.raises(RequestError, match=r"'cedar'.*ryan"):
            await speak(source, SpeechRequest(voice="cedar"), "Hello")
        assert await speak(source, SpeechRequest(voice="RYAN"), "Hello")
        assert await speak(source, SpeechRequest(voice="ryan-de"), "Hallo")
        assert await speak(source, SpeechRequest(), "Hello")


async def test_a_name_left_over_from_another_server_speaks_with_the_default_voice(data_dir, caplog):
    caplog.set_level(logging.INFO)
    async with open_engine(config_for(data_dir, voice="vivian")) as source:
        for name in ("alloy", "alloy", "de_DE-thorsten-medium"):
            assert await speak(source, SpeechRequest(voice=name), "22:15")
    assert caplog.text.count("There is no voice 'alloy'; vivian speaks") == 1
    # The warm-up says 21 characters.
    spoken = [m for m in caplog.messages if m.startswith("Spoke: ") and "characters=21" not in m]
    assert [each.split()[3] for each in spoken] == [
        f"language={code}" for code in ("zh", "zh", "de")
    ]


async def test_a_default_voice_that_does_not_exist_stops_the_start(data_dir):
    with pytest.raises(RequestError, match=r"Unknown voice 'nobody'; there are: .*ryan"):
        async with open_engine(config_for(data_dir, voice="nobody")):
            pass


async def test_a_data_directory_that_does_not_exist_stops_the_start(data_dir, tmp_path):
    config = Config(data_dirs=(str(data_dir), str(tmp_path / "typo")))
    with pytest.raises(ConfigError, match=r"typo does not exist; create it, or correct it"):
        async with open_engine(config):
            pass


@pytest.mark.parametrize(
    ("settings", "voice", "language"),
    [
        ({}, "ryan", "en"),
        ({}, "vivian", "zh"),
        ({"languages": ("de",)}, "ryan", "de"),
        ({"languages": ("es", "de")}, "vivian", "es"),
        ({"languages": ("es", "en")}, "ryan", "en"),
        ({"languages": ("es", "en")}, "ryan-fr", "fr"),
    ],
)
async def test_digits_are_spoken_in_the_usual_language(data_dir, caplog, settings, voice, language):
    caplog.set_level(logging.DEBUG)
    async with open_engine(config_for(data_dir, **settings), is_server=False) as source:
        await speak(source, SpeechRequest(voice), "22:15")
    assert f"language={language} " in caplog.text
    said = re.search(r"Says '22:15\.?' as '(.*)'", caplog.text)[1]
    assert not re.search(r"\d", said)


async def test_the_last_answer_of_a_connection_tells_the_language_of_the_next(data_dir, caplog):
    caplog.set_level(logging.INFO)
    conversation = Conversation()
    texts = ("Das Licht im Wohnzimmer ist an.", "22:15", "The light in the kitchen is on.", "7")
    async with open_engine(config_for(data_dir), is_server=False) as source:
        for text in texts:
            await speak(source, SpeechRequest("ryan", conversation=conversation), text)
    assert re.findall(r"language=(\w+)", caplog.text) == ["de", "de", "en", "en"]


async def test_a_model_without_a_voice_of_its_own_lists_what_to_do(tiny_bundle, tmp_path):
    bundle = tiny_bundle("0.6B-base")
    shutil.copytree(bundle, tmp_path / bundle.parent.name / bundle.name)
    async with open_engine(config_for(tmp_path)) as source:
        (listed,) = await source.voices()
        assert "voice add NAME --audio FILE" in listed.description
        for name in (listed.name, f"{listed.name}-de", None, "alloy"):
            with pytest.raises(RequestError, match="voice add NAME --audio FILE"):
                await speak(source, SpeechRequest(name), "Hello")


async def test_new_clips_are_encoded_before_anybody_asks_for_them(
    tiny_bundle, tmp_path, monkeypatch
):
    monkeypatch.setattr("wyoming_qwen3tts.engine.engine._ENCODING_INTERVAL_S", 0.05)
    monkeypatch.setattr("wyoming_qwen3tts.voices.library._MAX_SCAN_AGE_S", 0.0)
    for name in ("0.6B-base", "0.6B-custom_voice"):
        bundle = tiny_bundle(name)
        shutil.copytree(bundle, tmp_path / bundle.parent.name / bundle.name)
    async with open_engine(config_for(tmp_path, voice="ryan")):
        for name in ("anna", "bernd"):
            folder = write_voice(tmp_path, f"en/{name}", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
            for _ in range(1200):
                if list(folder.glob(".cache/*.npz")):
                    break
                await asyncio.sleep(0.05)
            else:
                raise TimeoutError(name)


async def test_encodings_on_disk_open_no_model(tiny_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr("wyoming_qwen3tts.engine.engine._ENCODING_INTERVAL_S", 0.05)
    for name in ("0.6B-base", "0.6B-custom_voice"):
        bundle = tiny_bundle(name)
        shutil.copytree(bundle, tmp_path / bundle.parent.name / bundle.name)
    write_voice(tmp_path, "en/anna", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
    async with open_engine(config_for(tmp_path), is_server=False) as source:
        await speak(source, SpeechRequest("anna"), "Hello")
    async with open_engine(config_for(tmp_path, voice="ryan")) as source:
        await asyncio.sleep(1)
        opened = [model.bundle.manifest.facts.model_type for model in source.pool.status()]
        assert opened == ["custom_voice"]


async def test_a_description_speaks_with_the_voice_design_model(data_dir):
    async with open_engine(config_for(data_dir, seed=3)) as source:
        warm = await speak(source, SpeechRequest("designed", speaker="a warm voice"), "Hello")
        cold = await speak(source, SpeechRequest("designed", speaker="an icy voice"), "Hello")
    assert pcm(warm) != pcm(cold)


async def test_many_requests_at_once_are_all_spoken_like_alone(data_dir):
    texts = ["Hello.", "Turn on the kitchen light.", "It's ten o'clock.", "Guten Morgen."]
    async with open_engine(config_for(data_dir, seed=5)) as source:
        request = SpeechRequest(voice="vivian", language="en")
        alone = [pcm(await speak(source, request, text)) for text in texts]
        together = await asyncio.gather(*(speak(source, request, text) for text in texts))
    assert [pcm(chunks) for chunks in together] == alone


async def test_closing_early_frees_the_place_of_the_request(data_dir):
    async with open_engine(config_for(data_dir, max_requests=1)) as source:
        await asyncio.sleep(0.5)  # the warm-up is no client, but takes a lane
        stream = source.stream(SpeechRequest(voice="ryan"), pieces("Hello there, long text. " * 9))
        await anext(stream)
        with pytest.raises(BusyError, match="try again"):
            await speak(source, SpeechRequest(voice="ryan"), "Hello")
        await stream.aclose()
        assert await speak(source, SpeechRequest(voice="ryan"), "Hello")


async def test_voices_are_listed_at_once_while_speaking(data_dir):
    async with open_engine(config_for(data_dir)) as source:
        stream = source.stream(SpeechRequest(voice="ryan"), pieces("Hello there, long text. " * 20))
        await anext(stream)
        assert await source.voices()
        assert await anext(stream)  # it still speaks
        await stream.aclose()


async def test_library_voices_come_and_go_without_a_restart(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("wyoming_qwen3tts.voices.library._MAX_SCAN_AGE_S", 0.0)
    root = tmp_path / "data"
    shutil.copytree(data_dir, root)
    async with open_engine(config_for(root)) as source:
        assert "narrator" not in {voice.name for voice in await source.voices()}
        folder = root / "voices" / "de" / "narrator"
        folder.mkdir(parents=True)
        (folder / "instruct.txt").write_text("An old man with a deep voice.")
        voices = {voice.name: voice for voice in await source.voices()}
        assert voices["narrator"].languages == ("de",)
        assert await speak(source, SpeechRequest(voice="narrator"), "Guten Morgen.")
        shutil.rmtree(folder)
        assert "narrator" not in {voice.name for voice in await source.voices()}


@pytest.mark.parametrize("text_mode", ["sentences", "continuous"])
async def test_both_text_modes_speak_text_in_pieces(data_dir, text_mode):
    async with open_engine(config_for(data_dir, seed=4, text_mode=text_mode)) as source:
        texts = ["Hello there. Turn", " on the light, ple", "ase. It is te", "n o'clock."]
        for voice in ("ryan", "designed"):
            chunks = await speak(source, SpeechRequest(voice=voice, language="en"), *texts)
            again = await speak(source, SpeechRequest(voice=voice, language="en"), "".join(texts))
            assert sum(chunk.duration_s for chunk in chunks) > 0.1
            assert pcm(chunks) == pcm(again)


async def test_names_are_understood_as_people_write_them(data_dir):
    async with open_engine(config_for(data_dir)) as source:
        for name in ("Uncle Fu", "uncle_fu", "Ono Anna", "ryan-de-DE", "Ryan-German"):
            assert await speak(source, SpeechRequest(voice=name), "Hello")
        assert (await source.catalog.find(SpeechRequest("Ryan-German"), None)).language == "de"


async def test_presets_of_a_second_model_carry_its_size(data_dir, tiny_bundle, tmp_path, caplog):
    root = tmp_path / "data"
    shutil.copytree(data_dir, root)
    second = tiny_bundle("1.7B-custom_voice")
    shutil.copytree(second, root / second.parent.name / second.name)
    async with open_engine(config_for(root)) as source:
        voices = {voice.name: voice for voice in await source.voices()}
        assert not voices["ryan"].speakers
        assert "whisper" in voices["ryan-1.7b"].speakers
        assert await speak(source, SpeechRequest("ryan-1.7b-de", speaker="whisper"), "Hallo")
        assert "follows no instructions" not in caplog.text
        for _ in range(2):
            await speak(source, SpeechRequest("ryan", speaker="whisper"), "Hello")
    assert caplog.text.count("follows no instructions") == 1


async def test_a_style_is_added_to_a_designed_voice(data_dir, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(data_dir, root)
    for name, style in (("plain", ""), ("styled", "style: Whisper very softly.\n")):
        folder = root / "voices" / "en" / name
        folder.mkdir(parents=True)
        (folder / "instruct.txt").write_text("An old man with a deep voice.")
        (folder / "voice.yaml").write_text(f"seed: 42\n{style}")
    async with open_engine(config_for(root)) as source:
        plain = pcm(await speak(source, SpeechRequest("plain"), "Hello there."))
        styled = pcm(await speak(source, SpeechRequest("styled"), "Hello there."))
        asked = SpeechRequest("plain", speaker="Whisper very softly.")
        assert plain != styled
        assert pcm(await speak(source, asked, "Hello there.")) == styled


async def test_a_preset_with_settings_of_its_own_is_a_voice(
    data_dir, tiny_bundle, tmp_path, monkeypatch
):
    monkeypatch.setattr("wyoming_qwen3tts.voices.library._MAX_SCAN_AGE_S", 0.0)
    root = tmp_path / "data"
    shutil.copytree(data_dir, root)
    second = tiny_bundle("1.7B-custom_voice")
    shutil.copytree(second, root / second.parent.name / second.name)
    folder = root / "voices" / "en" / "fu-whisper"
    folder.mkdir(parents=True)
    settings = "preset: Uncle Fu\ndescription: Fu, whispering\nseed: 7\nstyle: Whisper softly.\n"
    (folder / "voice.yaml").write_text(settings)
    async with open_engine(config_for(root)) as source:
        voices = {voice.name: voice for voice in await source.voices()}
        assert voices["fu-whisper"].description == "Fu, whispering"
        assert voices["fu-whisper"].languages == ("en",)
        assert "calm" in voices["fu-whisper"].speakers  # the model that follows instructions
        own = pcm(await speak(source, SpeechRequest("fu-whisper"), "Hello there."))
        assert own == pcm(await speak(source, SpeechRequest("fu-whisper"), "Hello there."))
        calm = SpeechRequest("fu-whisper", speaker="calm")
        assert own != pcm(await speak(source, calm, "Hello there."))
        (folder / "voice.yaml").write_text("preset: nobody\n")
        assert "fu-whisper" not in {voice.name for voice in await source.voices()}
        (folder / "instruct.txt").write_text("An old man.")
        assert "fu-whisper" not in {voice.name for voice in await source.voices()}


async def test_stream_without_text_opens_no_model(data_dir):
    async with open_engine(config_for(data_dir), is_server=False) as source:
        never = asyncio.Event()

        async def silent_text():
            await never.wait()
            yield "Hello."

        stream = source.stream(SpeechRequest(voice="ryan"), silent_text())
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.1)
        assert source.status().num_requests == 1
        assert not source.status().models
        never.set()
        await waiting
        assert source.status().models[0].num_users == 1
        await stream.aclose()
        assert source.status().models[0].num_users == 0


async def test_model_that_arrives_later_is_the_one_that_is_warmed_up(data_dir):
    async with open_engine(config_for(data_dir, voice="ryan"), is_server=False) as source:
        bundles = {bundle.manifest.facts.model_type: bundle for bundle in source.installer.bundles}
        await warm_up(source, bundles["voice_design"])
        (model,) = source.status().models
        assert model.labels[0] == bundles["voice_design"].manifest.name
        assert model.is_loaded
        await warm_up(source, bundles["base"])  # has no voice of its own
        assert [each.is_loaded for each in source.status().models] == [True, True]


async def test_failed_warm_up_is_the_error_of_its_model(data_dir, tmp_path, caplog):
    root = tmp_path / "data"
    shutil.copytree(data_dir, root)
    next(root.glob("*custom*/cpu_fp32/talker.onnx")).write_bytes(b"damaged")
    async with open_engine(config_for(root, voice="ryan"), is_server=False) as source:
        await warm_up(source)
        (model,) = source.status().models
        assert "talker" in model.error
        assert "Warm-up failed: " in caplog.text


@pytest.mark.parametrize(
    ("settings", "talker", "predictor"),
    [
        ({"temperature": 0.3, "top_k": 7}, (True, 0.3, 7), None),
        ({"temperature": 0.0}, (False, None, None), False),
    ],
)
async def test_sampling_settings_are_the_talkers(
    settings, talker, predictor, data_dir, monkeypatch
):
    asked = []
    submit = SynthesisWorker.submit

    def spy(worker, synthesizer, request):
        asked.append(request.options)
        return submit(worker, synthesizer, request)

    monkeypatch.setattr(SynthesisWorker, "submit", spy)
    async with open_engine(config_for(data_dir, **settings), is_server=False) as source:
        assert await speak(source, SpeechRequest("ryan"), "Hello.")
        (model,) = source.pool._models.values()
        own = default_options(model.synthesizer.model.facts.generation)
    (options,) = asked
    do_sample, temperature, top_k = talker
    assert options.talker.do_sample is do_sample
    assert options.talker.temperature == (temperature or own.talker.temperature)
    assert options.talker.top_k == (top_k or own.talker.top_k)
    assert options.predictor == (own.predictor if predictor is None else own.greedy().predictor)
