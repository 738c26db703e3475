"""Which files lie in memory."""

from strata.hw import in_memory


def test_the_longest_mount_decides(tmp_path):
    mounts = tmp_path / "mounts"
    table = {"/": "ext4", "/dev/shm": "tmpfs", f"{tmp_path}/a\\040b": "xfs", str(tmp_path): "tmpfs"}
    mounts.write_text("".join(f"device {at} {kind} rw 0 0\n" for at, kind in table.items()))
    assert in_memory("/dev/shm/model.gguf", mounts)
    assert not in_memory("/home/model.gguf", mounts)
    assert in_memory(tmp_path / "model.gguf", mounts)
    assert not in_memory(tmp_path / "a b" / "model.gguf", mounts)
    assert not in_memory("/dev/shm/model.gguf", tmp_path / "missing")
