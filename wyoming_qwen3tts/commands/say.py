"""``say``: speak one text into a file or a pipe."""

import argparse
import json
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from wyoming_qwen3tts.audio import NUM_CHANNELS, SAMPLE_WIDTH_BYTES, AudioChunk
from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.models.references import find_bundle, installed_models
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import ModelFacts
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    PresetSpeaker,
    SynthesisOptions,
    SynthesisRequest,
    TextLayout,
    Voice,
    default_options,
    supported_voices,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.utterance import Utterance
from wyoming_qwen3tts.text.language import language_code, model_language
from wyoming_qwen3tts.voices.catalog import Catalog, split_language
from wyoming_qwen3tts.voices.clips import cloned_voice, encode_clip, read_clip_file
from wyoming_qwen3tts.voices.library import VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import voice_key

_DEFAULT_OUTPUT = "speech.wav"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``say``."""
    parser.add_argument(
        "text",
        metavar="TEXT",
        help="what to say, exactly as it is: unlike the server, this rewrites no numbers and "
        "splits no sentences; - reads standard input",
    )
    add_flags(
        parser, "models", "data_dirs", "voice", "seed", "temperature", "top_k", "top_p", "threads"
    )
    parser.add_argument("--reference", type=Path, metavar="F", help="clip to clone (Base models)")
    parser.add_argument(
        "--reference-text",
        metavar="TEXT",
        help="what the clip says; without it only the timbre is cloned",
    )
    parser.add_argument("--language", metavar="L", help="de, de-DE, German ...; default: auto")
    parser.add_argument(
        "--instruct", metavar="TEXT", help="how to speak; for VoiceDesign: what the voice is like"
    )
    parser.add_argument("--layout", choices=[str(layout) for layout in TextLayout])
    parser.add_argument("--greedy", action="store_true", help="always take the most probable code")
    parser.add_argument("--max-frames", type=int, metavar="N", help="stop after N frames of 80 ms")
    parser.add_argument(
        "--output",
        default=_DEFAULT_OUTPUT,
        metavar="F.wav|-",
        help="WAV file, or - for raw 16-bit PCM on standard output (default: %(default)s)",
    )
    parser.add_argument("--codes", type=Path, metavar="F.npy", help="save the codes (frames, 16)")
    parser.add_argument("--json", action="store_true", help="print the metadata as JSON")


def run(args: argparse.Namespace, config: Config) -> int:
    """Speak the text.

    Raises:
        Qwen3TTSError: The model or the request cannot be used.
    """
    text = sys.stdin.read() if args.text == "-" else args.text
    args.entry = None
    for name in ("voice", "seed", "temperature", "top_k", "top_p"):
        setattr(args, name, getattr(config, name))
    bundle = _bundle(args, config)
    if bundle.notice is not None:
        print(bundle.notice, file=sys.stderr)
    model = open_bundle(bundle.directory, config.num_threads)
    speech = _speak(model, _request(args, config, model, text), args.output)
    if args.codes is not None:
        with args.codes.open("wb") as file:
            np.save(file, speech.codes.reshape(-1, model.facts.num_code_groups))
    # Metadata must not end up inside raw audio.
    stream = sys.stderr if args.output == "-" else sys.stdout
    metadata = _metadata(bundle, model.facts, speech, args)
    print(json.dumps(metadata) if args.json else _summary(metadata), file=stream)
    return 0


def _bundle(args: argparse.Namespace, config: Config) -> InstalledBundle:
    """Return the named model, else the one that speaks what is asked for."""
    data_dirs = config.data_paths
    if config.models:
        return find_bundle(config.models[0], data_dirs)
    installed = installed_models(data_dirs)
    if args.voice is not None:
        library = VoiceLibrary(data_dirs)
        catalog = Catalog(installed, library, {})
        request = SpeechRequest(args.voice, args.language)
        return catalog.select(catalog.combine(library.scan()), request, None).bundle
    wanted = "base" if args.reference is not None else "custom_voice"
    fitting = [bundle for bundle in installed if bundle.manifest.facts.model_type == wanted]
    return (fitting or installed)[0]


def _request(
    args: argparse.Namespace,
    config: Config,
    model: SpeechModel,
    text: str,
) -> SynthesisRequest:
    facts = model.facts
    voice = _voice(args, config, model)
    options = default_options(facts.generation)
    if args.entry is not None:
        options = args.entry.settings.apply(options)
    if args.seed is not None:
        options = replace(options, seed=args.seed)
    if args.greedy:
        options = options.greedy()
    changes = {
        name: value
        for name in ("temperature", "top_k", "top_p")
        if (value := getattr(args, name)) is not None
    }
    options = replace(
        options,
        talker=replace(options.talker, **changes),
        predictor=replace(options.predictor, **changes),
        max_frames=options.max_frames if args.max_frames is None else args.max_frames,
        language=_language(args.language),
        instruction=args.instruct,
        layout=TextLayout(args.layout) if args.layout else None,
    )
    return SynthesisRequest(text, voice, _without_vain_instruction(options, facts))


def _voice(args: argparse.Namespace, config: Config, model: SpeechModel) -> Voice:
    facts = model.facts
    if args.reference is not None:
        encoded = encode_clip(read_clip_file(args.reference), args.reference_text, model)
        return cloned_voice(encoded, args.reference_text)
    if args.reference_text is not None:
        raise RequestError("--reference-text needs --reference, the clip that says it.")
    if facts.model_type == "voice_design" and args.voice is None:
        return DesignedVoice(args.instruct or "")
    if facts.model_type == "custom_voice" and args.voice is None:
        return PresetSpeaker(min(facts.speakers))
    if args.voice is None:
        raise RequestError(f"This model {supported_voices(facts)}; give it one with --reference.")
    library = VoiceLibrary(config.data_paths)
    entries = {voice_key(entry.name): entry for entry in library.scan()}
    key, code = split_language(args.voice, {*facts.speakers, *entries})
    args.language = args.language or code
    if facts.model_type == "custom_voice" or key not in entries:
        # If it is no preset either, the model refuses it and says what it can do.
        size = f"-{facts.model_size.lower()}"
        return PresetSpeaker(key.removesuffix(size))
    args.entry = library.find(entries[key].name)
    args.language = args.language or args.entry.language
    return library.prepare(args.entry, model).result()


def _without_vain_instruction(options: SynthesisOptions, facts: ModelFacts) -> SynthesisOptions:
    if options.instruction is None or facts.follows_instructions:
        return options
    if facts.model_type == "custom_voice":
        print(
            f"warning: the {facts.model_size} CustomVoice model follows no instructions; "
            "--instruct has no effect.",
            file=sys.stderr,
        )
        return replace(options, instruction=None)
    raise RequestError("This model takes no instruction; leave --instruct out.")


def _language(name: str | None) -> str | None:
    if name is None or name.lower() == "auto":
        return None
    code = language_code(name)
    if code is None:
        raise RequestError(
            f"Unknown language {name!r}; use zh, en, ja, ko, de, fr, ru, pt, es, it or auto."
        )
    return model_language(code)


def _speak(model: SpeechModel, request: SynthesisRequest, output: str) -> Utterance:
    synthesizer = Synthesizer(model)
    speech = synthesizer.submit(request)
    chunks = synthesizer.follow(speech)
    with tqdm(unit="s", unit_scale=True, desc="audio", disable=None, leave=False) as bar:
        _write(_with_progress(chunks, bar), output, model.facts.sample_rate_hz)
    return speech


def _with_progress(chunks: Iterator[AudioChunk], bar: "tqdm[Any]") -> Iterator[AudioChunk]:
    for chunk in chunks:
        bar.update(chunk.duration_s)
        yield chunk


def _write(chunks: Iterator[AudioChunk], output: str, sample_rate_hz: int) -> None:
    if output == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk.pcm16())
            sys.stdout.buffer.flush()
        return
    with _written_whole(Path(output)) as file, wave.open(file, "wb") as wav:
        wav.setnchannels(NUM_CHANNELS)
        wav.setsampwidth(SAMPLE_WIDTH_BYTES)
        wav.setframerate(sample_rate_hz)
        for chunk in chunks:
            wav.writeframes(chunk.pcm16())


@contextmanager
def _written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` that takes its place only when everything was written."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _metadata(
    bundle: InstalledBundle, facts: ModelFacts, speech: Utterance, args: argparse.Namespace
) -> dict[str, Any]:
    timing, options = speech.timing, speech.request.options
    voice = speech.request.voice
    return {
        "model": bundle.manifest.name,
        "model_type": facts.model_type,
        "device": bundle.manifest.device,
        "precision": bundle.manifest.recipe,
        "voice": voice.name.lower() if isinstance(voice, PresetSpeaker) else args.voice,
        "language": options.language or "auto",
        "instruction": options.instruction,
        "style_instruction_supported": facts.follows_instructions,
        "seed": None if args.greedy else options.seed,
        "frames": timing.num_frames,
        "sample_rate_hz": facts.sample_rate_hz,
        "audio_s": timing.audio_duration_s(facts.sample_rate_hz),
        "first_audio_s": timing.ttfa_s,
        "synthesis_s": timing.synthesis_s,
        "rtf": timing.rtf(facts.sample_rate_hz),
        "finish_reason": speech.finish_reason,
        "output": args.output,
    }


def _summary(metadata: dict[str, Any]) -> str:
    return (
        f"{metadata['output']}: {metadata['audio_s']:.2f} s of audio, first audio after "
        f"{metadata['first_audio_s']:.3f} s, real-time factor {metadata['rtf']:.3f}, "
        f"ended by {metadata['finish_reason']}"
    )
