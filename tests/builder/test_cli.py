import argparse
from pathlib import Path

import pytest

from wyoming_qwen3tts.builder import cli
from wyoming_qwen3tts.config import load_config
from wyoming_qwen3tts.runtime.manifest import read_manifest


def parse(*arguments):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args([str(argument) for argument in arguments])


def run(*arguments):
    args = parse(*arguments)
    return cli.run(args, load_config(args, {}))


def test_defaults():
    args = parse("checkpoint")
    assert args.output is None


def test_a_build_says_where_how_large_and_how_long(tiny, tmp_path, capsys):
    assert run(tiny("1.7B"), "--precision", "int4", "--data-dir", tmp_path) == 0
    bundle = tmp_path / "qwen3-tts-12hz-1.7b-customvoice" / "cpu_int4"
    assert read_manifest(bundle).recipe == "int4"
    output = capsys.readouterr()
    assert output.out.startswith(f"{bundle}: ")
    assert " MB in " in output.out
    assert output.err == ""  # no bar where nobody watches


def test_a_terminal_shows_a_bar(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run(tiny(), "--output", tmp_path / "b")
    output = capsys.readouterr()
    assert "% |" in output.err
    assert "%" not in output.out


def test_recipes_and_names(tiny, tmp_path):
    output = tmp_path / "here"
    run(tiny(), "--output", output, "--name", "mine")
    assert read_manifest(output).name == "mine"
    assert read_manifest(output).recipe == "int8"
    recipe = Path(__file__).parents[2] / "config" / "recipes" / "int8-int4heads.yaml"
    run(tiny(), "--output", output, "--recipe", recipe, "--force")
    manifest = read_manifest(output)
    assert manifest.recipe == "int8-int4heads"
    assert manifest.precision["code_predictor"]["heads"] == "int4"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--precision", "int3"],
        ["--precision", "int8", "--recipe", "x.yaml"],
        ["--precision", "fp16"],
        ["--device", "cuda"],
    ],
)
def test_mistakes_are_refused_before_anything_is_read(arguments, capsys):
    with pytest.raises(SystemExit):
        parse("checkpoint", *arguments)
    assert "error" in capsys.readouterr().err
