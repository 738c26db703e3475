"""Limits of control groups, read from planted trees of version 1, version 2, both, and neither."""

import os

import pytest

from strata.hw import cpu_count, memory
from strata.hw.cgroup import cpu_quota, memory_limit

V2 = "0::/user/app\n"
V1 = "5:memory:/app\n4:cpu,cpuacct:/app\n"


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/user/app/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/user/app/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        (
            {
                "proc/self/cgroup": V2,
                "sys/fs/cgroup/user/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/user/app/cpu.max": "400000 100000\n",
            },
            1.0,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_cpu_quota(tmp_path, files, quota):
    assert cpu_quota(plant(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/user/app/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/user/memory.max": "5000\n"}, 5000),
        ({"proc/self/cgroup": V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n"}, 7000),
        (
            {"proc/self/cgroup": V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
            None,
        ),
    ],
)
def test_memory_limit(tmp_path, files, limit):
    assert memory_limit(plant(tmp_path, files)) == limit


def test_cpu_count_honours_affinity_and_quota(tmp_path):
    allowed = len(os.sched_getaffinity(0))
    assert cpu_count(tmp_path) == allowed
    plant(tmp_path, {"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "150000 100000\n"})
    assert cpu_count(tmp_path) == 1
    plant(tmp_path, {"sys/fs/cgroup/cpu.max": "20000 100000\n"})
    assert cpu_count(tmp_path) == 1
    plant(tmp_path, {"sys/fs/cgroup/cpu.max": f"{(allowed + 5) * 100000} 100000\n"})
    assert cpu_count(tmp_path) == allowed


def test_memory_is_cut_to_the_group(tmp_path):
    plant(tmp_path, {"proc/meminfo": "MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:  1000 kB\n"})
    found = memory(tmp_path)
    assert (found.total, found.available, found.limit) == (2000 * 1024, 1000 * 1024, None)
    plant(tmp_path, {"proc/self/cgroup": V2, "sys/fs/cgroup/memory.max": "4096\n"})
    found = memory(tmp_path)
    assert (found.available, found.limit) == (4096, 4096)
