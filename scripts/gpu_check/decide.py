"""Stage 17."""
from gpu_check.common import Report
def run(report: Report) -> None:
    pass
