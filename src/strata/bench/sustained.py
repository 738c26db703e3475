"""What a GPU says of itself while it works, by nvidia-smi."""

import shutil
import subprocess

_FIELDS = ("power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "clocks_event_reasons.active")
# Bits of clocks_event_reasons.active (NVML): 1 is an idle GPU.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


def gpu_state() -> str:
    """Power, clocks, temperature and why clocks are lowered, in one line; or why there is no such line."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "nvidia-smi is not installed"
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed: {str(error).splitlines()[0]}"
    return describe(done.stdout.splitlines()[0])


def describe(line: str) -> str:
    """A line of nvidia-smi's answer, its reasons in words."""
    power, sm, memory, temperature, active = (part.strip() for part in line.split(","))
    bits = int(active, 16)
    reasons = ", ".join(text for bit, text in _REASONS.items() if bits & bit) or "not throttled"
    return f"{power}, SM {sm}, memory {memory}, {temperature} C, {reasons}"
