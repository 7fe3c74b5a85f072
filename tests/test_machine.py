"""Whether a machine can run the program, and its default number of threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wyoming_qwen3tts import cli
from wyoming_qwen3tts import machine as machine_module
from wyoming_qwen3tts.machine import default_num_threads, why_unsupported


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that describes a machine: siblings and capacity of each CPU."""

    def describe(siblings, capacities=(), performance="", affinity=None, **files):
        cpus = set(range(len(siblings))) if affinity is None else set(affinity)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus, raising=False)
        for cpu, text in enumerate(siblings):
            write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", text)
        for cpu, capacity in enumerate(capacities):
            write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))
        if performance:
            write("sys/devices/cpu_core/cpus", performance)
        for place, text in files.items():
            write(place, text)
        return tmp_path

    def write(place, text):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    return describe


SIX_CORES = [f"{cpu % 6},{cpu % 6 + 6}" for cpu in range(12)]
PLAIN_FOUR = ["0", "1", "2", "3"]
HYBRID = ["0-1", "0-1", "2-3", "2-3", *map(str, range(4, 12))]


def test_two_threads_of_a_core_count_once(machine):
    assert default_num_threads(machine(SIX_CORES)) == 6


def test_efficiency_cores_do_not_count(machine):
    assert default_num_threads(machine(HYBRID, performance="0-3")) == 2


def test_a_process_on_efficiency_cores_uses_them(machine):
    assert default_num_threads(machine(HYBRID, performance="0-3", affinity=range(6, 9))) == 3


def test_little_cores_do_not_count_and_nearly_equal_ones_do(machine):
    assert default_num_threads(machine(PLAIN_FOUR, capacities=[446, 446, 1024, 980])) == 2


def test_affinity_limits(machine):
    assert default_num_threads(machine(SIX_CORES, affinity=[0, 6, 1])) == 2


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, 4),
        (
            {
                "proc/self/cgroup": "0::/system.slice/tts.service",
                "sys/fs/cgroup/system.slice/tts.service/cpu.max": "max 100000",
                "sys/fs/cgroup/system.slice/cpu.max": "300000 100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "12:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n0::/docker/1",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_the_quota_of_the_control_group_limits(machine, files, wanted):
    assert default_num_threads(machine(PLAIN_FOUR, **files)) == wanted


def test_a_system_without_descriptions_counts_its_cpus(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert default_num_threads(tmp_path) == 8


def test_this_machine_has_at_least_one():
    assert 1 <= default_num_threads() <= (os.cpu_count() or 1)


KVM64 = "fpu sse sse2 ht syscall nx lm pni cx16 hypervisor"
V2 = KVM64 + " ssse3 sse4_1 sse4_2 popcnt"


@pytest.mark.parametrize(
    ("cpuinfo", "architecture", "lacks"),
    [
        (f"flags\t\t: {KVM64}", "x86_64", "popcnt, sse4_1, sse4_2, ssse3"),
        (f"flags\t\t: {V2}", "x86_64", None),
        ("Features\t: fp asimd", "aarch64", None),
        ("", "x86_64", None),
    ],
)
def test_a_processor_below_v2_is_told_what_it_lacks(
    cpuinfo, architecture, lacks, machine, monkeypatch
):
    monkeypatch.setattr(machine_module.platform, "machine", lambda: architecture)
    reason = why_unsupported(machine([], **{"proc/cpuinfo": cpuinfo}))
    if lacks is None:
        assert reason is None
    else:
        assert f"lacks {lacks} (x86-64-v2)" in reason
        assert "CPU type to host" in reason


def test_windows_is_sent_to_docker(monkeypatch, capsys):
    monkeypatch.setattr(machine_module.sys, "platform", "win32")
    assert cli.main(["say", "hi"]) == 1
    assert "Docker" in capsys.readouterr().err


def test_numpy_is_not_imported_before_the_processor_is_looked_at():
    code = "import sys, wyoming_qwen3tts.cli; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
