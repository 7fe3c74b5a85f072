"""Writes the generated files of the Home Assistant app."""

from pathlib import Path

from script._addon.drawing import draw_icon, draw_logo, write_png
from script._addon.options import render_config, render_translation

FOLDER = Path(__file__).parents[2] / "config" / "addon"


def main() -> None:
    """Write them all."""
    (FOLDER / "config.yaml").write_text(render_config())
    (FOLDER / "translations" / "en.yaml").write_text(render_translation())
    write_png(FOLDER / "icon.png", draw_icon())
    write_png(FOLDER / "logo.png", draw_logo())


if __name__ == "__main__":
    main()
