"""What stands around a runner: its sessions, where sequences live, and the scheduler."""

from dataclasses import dataclass
from pathlib import Path

from strata.config import ServingOptions
from strata.engine.drafts import Speculation
from strata.engine.identity import model_identity
from strata.engine.pieces import Cutter
from strata.engine.ram_budget import RamBudget
from strata.engine.runner import Runner
from strata.engine.scheduler import Scheduler, SchedulerOptions
from strata.engine.sequences import Sequences
from strata.engine.session_disk import SessionDisk
from strata.engine.session_store import SessionStore
from strata.engine.sessions import SessionLayout, Sessions
from strata.engine.waiting import QueueLimits
from strata.gguf import ModelFile
from strata.memory import state_fingerprint
from strata.ops import CHUNK_BLOCK


@dataclass(frozen=True)
class Around:
    """The scheduler of a runner, and what it keeps of texts."""

    scheduler: Scheduler
    store: SessionStore


def assemble(
    file: ModelFile,
    runner: Runner,
    cutter: Cutter,
    options: ServingOptions,
    speculation: Speculation | None = None,
) -> Around:
    """Everything that a runner needs to serve; UsageError where the session directory cannot be used."""
    sessions, parallel = _sessions(file, runner, options), runner.limits.max_num_seqs
    limits = QueueLimits(options.max_queue, options.max_per_key)
    scheduler = Scheduler(
        SchedulerOptions(parallel, options.prompt_share / 100, limits, runner.step_rows),
        cutter,
        Sequences(parallel, runner.pages, runner.keeper, sessions),
        speculation,
    )
    return Around(scheduler, sessions.store)


def _sessions(file: ModelFile, runner: Runner, options: ServingOptions) -> Sessions:
    disk = None
    if options.session_dir:
        model = model_identity(file, f"{state_fingerprint(runner.state)} {runner.backend.name}")
        disk = SessionDisk(Path(options.session_dir), model, options.session_mib << 20)
    recurrent = bool(runner.state.recurrent())
    budget = RamBudget(options.conversation_cache_mib << 20)
    store = SessionStore(recurrent, runner.pages, runner.keeper, budget, disk)
    every = max(options.prompt_cache_every // CHUNK_BLOCK, 1) * CHUNK_BLOCK
    layout = SessionLayout(recurrent, every, runner.limits.max_num_seqs)
    return Sessions(store, runner.pages, runner.keeper, layout)
