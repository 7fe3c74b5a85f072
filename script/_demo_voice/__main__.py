"""Entry point: ``python -m script._demo_voice``."""

from script._demo_voice.cli import main

main()
