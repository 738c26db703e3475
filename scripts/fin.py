import sys
import time

import numpy as np
from gpu_check import common, drafts, prompt_times, tiers
from gpu_check.common import SLOW, hold_link, say
from gpu_check.files import model_file
from strata.bench.tier_report import measured_rates, tier_report
from strata.bench.windows import Windows, load_cycle

what = sys.argv[1]
full = model_file("planted.gguf")
if what == "drafts24":
    drafts.TIERED = (None, 75, 100, 50, 0, None)
    drafts.run_tiers({})
elif what == "drafts":
    drafts.DIALS, drafts.BATCHES = (75, 90, 100, 50, 0), (2, 4)
    drafts.run({})
elif what == "beside":
    say(f"beside: {prompt_times._beside(full)}")
elif what == "slow":
    with tiers._loaded(full, 24) as loaded:
        run = Windows(loaded, load_cycle(full))
        for r in run.rounds(1, say):
            pass
        hold_link(loaded, SLOW)
        rates = measured_rates(loaded)
        lines = []
        for r in run.rounds(1, say):
            lines += tier_report(loaded, r, rates).lines("22 GB/s")
        say("\n".join(lines))
        say(str(rates))
