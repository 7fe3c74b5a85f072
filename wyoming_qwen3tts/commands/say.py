"""``say``: speak a text into a file or a pipe, as the server speaks it."""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import soundfile
from tqdm import tqdm

from wyoming_qwen3tts.audio import NUM_CHANNELS, AudioChunk
from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.errors import RequestError, SynthesisError
from wyoming_qwen3tts.files import atomic_file, atomic_write
from wyoming_qwen3tts.text.language import (
    detect_language,
    has_words,
    known_language,
    language_code,
)
from wyoming_qwen3tts.text.normalize import chosen_rules, normalize
from wyoming_qwen3tts.text.rules import LANGUAGES
from wyoming_qwen3tts.text.sentences import split_sentences
from wyoming_qwen3tts.tts import TTS
from wyoming_qwen3tts.voices.editing import add_voice
from wyoming_qwen3tts.voices.library import LIBRARY_NAME

_REFERENCE_NAME = "reference"
_SETTINGS = (
    *("models", "data_dirs", "voice", "precision", "threads", "styles", "languages"),
    *("text_rules", "disabled_text_rules"),
    *("seed", "temperature", "top_k", "top_p", "local_files_only"),
    *("sentence_silence", "leading_silence", "trailing_silence"),
)
# Suffix of the output -> format and encoding of libsndfile.
_FORMATS: Final = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
    ".ogg": ("OGG", "VORBIS"),
    ".opus": ("OGG", "OPUS"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``say``."""
    add = parser.add_argument
    add("text", metavar="TEXT", help="what to say; - reads standard input")
    add_flags(parser, *_SETTINGS)
    add("--language", metavar="L", help="de, de-DE, German ...; default: auto")
    help_line = "a style, or how to speak; for VoiceDesign models: what the voice is like"
    add("--instruct", metavar="TEXT", help=help_line)
    add("--reference", type=Path, metavar="F", help="clip of a voice to clone (Base models)")
    help_line = "what the clip says; without it only the timbre is cloned"
    add("--reference-text", metavar="TEXT", help=help_line)
    help_line = "always take the likeliest code (temperature 0)"
    add("--greedy", action="store_true", help=help_line)
    help_line = "give the model the text as it is: no text rules, no cut into sentences"
    add("--exact", action="store_true", help=help_line)
    help_line = "print what would be spoken, sentence by sentence with its language, and stop"
    add("--dry-run", action="store_true", help=help_line)
    help_line = (
        f"file ({', '.join(_FORMATS)}), or - for raw 16-bit PCM on standard output "
        "(default: %(default)s)"
    )
    add("--output", default="speech.wav", metavar="F|-", help=help_line)
    add("--json", action="store_true", help="print the measurements as JSON")
    help_line = "write the measurements beside the output: speech.json for speech.wav"
    add("--metadata", action="store_true", help=help_line)


def run(args: argparse.Namespace, config: Config) -> int:
    """Speak the text."""
    is_pipe, path = args.output == "-", Path(args.output)
    if not is_pipe and path.suffix.lower() not in _FORMATS:
        raise RequestError(f"{path} must end with one of {', '.join(_FORMATS)}.")
    if is_pipe and args.metadata:
        raise RequestError("--metadata needs a file as --output.")
    text = sys.stdin.read() if args.text == "-" else args.text
    if args.language is not None and args.language.lower() != "auto":
        known_language(args.language)
    if args.dry_run:
        return _dry_run(text, args.language, config)
    if args.greedy:
        config = replace(config, temperature=0.0)
    with ExitStack() as stack:
        if args.reference is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            config = _with_reference(config, folder, args)
        elif args.reference_text is not None:
            raise RequestError("--reference-text needs --reference, the clip that says it.")
        tts = stack.enter_context(TTS(config=config))
        measured: dict[str, Any] = {
            "voice": config.voice,
            "language": args.language,
            "style": args.instruct,
            "seed": config.seed,
            "output": args.output,
        }
        stream = tts.stream(text, language=args.language, style=args.instruct, is_exact=args.exact)
        chunks = stack.enter_context(closing(stream))
        bar = tqdm(unit="s", unit_scale=True, desc="audio", disable=None, leave=False)
        stack.enter_context(bar)
        spoken = _measured(chunks, measured, bar)
        # An error before the first chunk must not create a file.
        first = next(spoken, None)
        if first is None:
            raise SynthesisError("There was no audio for this text.")
        _write(first, spoken, None if is_pipe else path)
    if args.metadata:
        atomic_write(path.with_suffix(".json"), json.dumps(measured, indent=2) + "\n")
    # Measurements must not end up inside raw audio.
    out = sys.stderr if is_pipe else sys.stdout
    print(json.dumps(measured) if args.json else _SUMMARY.format_map(measured), file=out)
    return 0


def _dry_run(text: str, language: str | None, config: Config) -> int:
    code = language_code(language) or detect_language(text, config.languages or LANGUAGES)
    rules = chosen_rules(config.text_rules, config.disabled_text_rules)
    for sentence in split_sentences(text, code):
        if has_words(spoken := normalize(sentence, code, rules)):
            print(f"{code or 'unsure'}: {spoken}")
    return 0


_SUMMARY: Final = (
    "{output}: {audio_s:.2f} s of audio, first audio after {first_audio_s:.3f} s, "
    "real-time factor {rtf:.3f}"
)


def _with_reference(config: Config, folder: Path, args: argparse.Namespace) -> Config:
    """Return a config with the reference clip as a voice of a temporary library."""
    language = language_code(args.language) or "en"
    library = folder / LIBRARY_NAME
    add_voice(library, _REFERENCE_NAME, language, args.reference, args.reference_text)
    data_dirs = (*map(str, config.data_paths), str(folder))
    return replace(config, data_dirs=data_dirs, voice=_REFERENCE_NAME)


def _measured(
    chunks: Iterable[AudioChunk], measured: dict[str, Any], bar: "tqdm[Any]"
) -> Iterator[AudioChunk]:
    started_s, audio_s = time.perf_counter(), 0.0
    for chunk in chunks:
        seconds = time.perf_counter() - started_s
        audio_s += chunk.duration_s
        measured.setdefault("sample_rate_hz", chunk.sample_rate_hz)
        measured.setdefault("first_audio_s", seconds)
        measured |= {"audio_s": audio_s, "synthesis_s": seconds, "rtf": seconds / audio_s}
        bar.update(chunk.duration_s)
        yield chunk


def _write(first: AudioChunk, rest: Iterator[AudioChunk], path: Path | None) -> None:
    chunks = itertools.chain([first], rest)
    if path is None:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk.pcm16())
            sys.stdout.buffer.flush()
        return
    file_format, encoding = _FORMATS[path.suffix.lower()]
    with (
        atomic_file(path) as file,
        soundfile.SoundFile(
            file, "w", first.sample_rate_hz, NUM_CHANNELS, encoding, format=file_format
        ) as audio,
    ):
        for chunk in chunks:
            audio.write(np.frombuffer(chunk.pcm16(), "<i2"))
