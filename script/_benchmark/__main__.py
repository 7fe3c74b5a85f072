"""Run the benchmark."""

import sys

from script._benchmark.cli import main

sys.exit(main())
