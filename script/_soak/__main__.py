"""Run the soak."""

import sys

from script._soak.cli import main

sys.exit(main())
