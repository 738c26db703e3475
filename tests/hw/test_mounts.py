"""Which files lie in memory."""

from strata.hw import in_memory


def test_the_longest_mount_decides(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"root / ext4 rw 0 0\nshm /dev/shm tmpfs rw 0 0\ndisk {tmp_path}/a\\040b xfs rw 0 0\nram {tmp_path} tmpfs rw 0 0\n"
    )
    assert in_memory("/dev/shm/model.gguf", mounts)
    assert not in_memory("/home/model.gguf", mounts)
    assert in_memory(tmp_path / "model.gguf", mounts)
    assert not in_memory(tmp_path / "a b" / "model.gguf", mounts)
    assert not in_memory("/dev/shm/model.gguf", tmp_path / "missing")
