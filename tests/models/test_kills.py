"""Whatever is killed whenever, the next start recovers."""

import subprocess
import sys

from tests.models import kill_trial
from tests.support.hub_fixtures import child_environment

# Few, for the time it takes; the module kill_trial tries them all.
NUM_RANDOM_KILLS = 1
STRIDE = 19


def test_kill_before_file_operations(hub, tmp_path):
    trial = ["-m", "tests.models.kill_trial", "points", "--stride", str(STRIDE)]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", *trial],
        env=child_environment(hub, tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 80


def test_kill_at_random_moments(hub, tmp_path):
    hub.block_pause_s = 0.001
    environment = child_environment(hub, tmp_path / "home")
    kill_trial.try_random(tmp_path, environment, NUM_RANDOM_KILLS, seed=1)
