"""Train strata-mini: usage: python -m training.train --data DIR --out DIR [--seconds 500 | --steps N] [--resume]

Writes log.jsonl, checkpoint.pt (to go on from), and at the end the weights as training.packed has them.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from training import fused, rounding
from training.batches import SHARES, Batches
from training.config import TINY, ModelConfig
from training.losses import draft_loss, head_loss, trunk_loss
from training.model import Model
from training.optimizer import Optimizer
from training.packed import write_packed
from training.plan import ASSUMED_STEPS, BATCH_TOKENS, PHASES, Phase, phase_of, rate_of, steps_for

REFRESH = 4  # steps between two roundings of the experts' weights
CALIBRATE = (30, 70)  # steps between which the time of one is measured
BALANCE = 0.01
QUERIES = 256  # positions a step teaches the indexer


class Trainer:
    """State of a run and its one step."""

    def __init__(self, config: ModelConfig, given: argparse.Namespace):
        torch.manual_seed(0)
        self.device, self.given = given.device, given
        self.model = Model(config).to(self.device)
        self.model.dtype = getattr(torch, given.dtype)
        for block in [*self.model.model.layers, *self.model.mtp.layers]:
            experts = block.mlp.experts
            block.mlp.noise_gate_up = torch.zeros_like(experts.gate_up_proj.data)
            block.mlp.noise_down = torch.zeros_like(experts.down_proj.data)
        self.optimizer = Optimizer(self.model)
        self.train = Batches(given.data, self.device)
        self.held_out = Batches(given.data, self.device, prefix="held-out")
        self.grid = rounding.grid().to(self.device)
        fused.enable(given.compile)
        self.step_number, self.steps = 0, given.steps

    def step(self, phase: Phase) -> dict[str, torch.Tensor]:
        """One update; losses as tensors, so that nothing waits for the device."""
        rows = max(3, self.given.batch_tokens // phase.length)
        tokens = self.train.step(self.step_number, rows, phase.length)
        if phase.rounding and self.step_number % REFRESH == 0:
            rounding.refresh(self.model, self.grid)
        loss, balance, residual, best, inputs = trunk_loss(self.model, tokens)
        found, total = {"loss": loss, "balance": balance}, loss + BALANCE * balance
        if phase.drafts:
            found["draft"] = draft_loss(self.model, tokens, residual, best, phase.drafts)
            total = total + found["draft"]
        if phase.indexer:
            generator = torch.Generator().manual_seed(self.step_number)
            queries = torch.randint(0, phase.length, (QUERIES,), generator=generator).to(self.device)
            found["indexer"] = self.model.indexer_loss(inputs, queries.clamp_min(3))
            total = total + found["indexer"]
        total.backward()
        torch.nn.utils.clip_grad_norm_([p for p in self.optimizer.parameters if p.grad is not None], 1.0)
        self.optimizer.step(rate_of(self.step_number, self.steps or ASSUMED_STEPS))
        self.step_number += 1
        return {name: value.detach() for name, value in found.items()}

    @torch.no_grad()
    def evaluate(self, length: int, rows: int, sparse: bool = False) -> dict[str, float]:
        """Held-out perplexity by domain."""
        found, compiled = {}, fused.enable(False)
        for domain in SHARES:
            total, count = 0.0, 0
            for part in self.held_out.windows(domain, rows, length).split(max(1, 16_384 // length)):
                hidden = self.model.run(part[:, :-1], sparse).hidden.flatten(0, 1)
                loss, _ = head_loss(hidden, self.model.lm_head.weight, part[:, 1:].flatten())
                total, count = total + float(loss) * len(part), count + len(part)
            found[domain] = round(math.exp(total / count), 4)
        fused.enable(compiled)
        return found

    def save(self, path: Path) -> None:
        """Everything that a run needs to go on as if it had not stopped."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "noise": self.noise(),
        }
        torch.save(state | {"step": self.step_number, "steps": self.steps}, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def load(self, path: Path) -> None:
        """Takes up a saved run."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, buffer in self.noise().items():
            buffer.copy_(state["noise"][name])
        self.step_number, self.steps = state["step"], state["steps"]

    def noise(self) -> dict[str, torch.Tensor]:
        """What rounding adds, by layer and plane."""
        found = {}
        for i, block in enumerate([*self.model.model.layers, *self.model.mtp.layers]):
            found |= {f"{i}.gate_up": block.mlp.noise_gate_up, f"{i}.down": block.mlp.noise_down}
        return found


def run(trainer: Trainer, given: argparse.Namespace, began: float) -> None:
    """Steps to the end of the plan, or of the time; the log gets a line every few steps."""
    log = (given.out / "log.jsonl").open("a")

    def tell(**line: Any) -> None:
        text = json.dumps({"step": trainer.step_number, "seconds": round(time.monotonic() - began, 1)} | line)
        print(text, flush=True)
        log.write(text + "\n")
        log.flush()

    marks: dict[int, float] = {}
    tokens = 0
    while trainer.steps is None or trainer.step_number < trainer.steps:
        if time.monotonic() - began > given.stop_after:
            tell(stopped="out of time", steps=trainer.steps)
            break
        steps = trainer.steps or ASSUMED_STEPS
        phase = phase_of(trainer.step_number, steps)
        losses = trainer.step(phase)
        tokens += max(3, given.batch_tokens // phase.length) * phase.length
        if trainer.steps is None and trainer.step_number in CALIBRATE:
            marks[trainer.step_number] = float(losses["loss"]) * 0 + time.monotonic()
            if len(marks) == len(CALIBRATE):
                one = (marks[CALIBRATE[1]] - marks[CALIBRATE[0]]) / (CALIBRATE[1] - CALIBRATE[0])
                left = began + given.seconds - time.monotonic()
                trainer.steps = trainer.step_number + steps_for(left, one)
                tell(step_seconds=round(one, 4), steps=trainer.steps)
        if trainer.step_number % given.log_every == 0:
            values = {name: round(float(value), 4) for name, value in losses.items()}
            tell(**values, tokens=tokens, length=phase.length)
        if trainer.steps and trainer.step_number % max(1, trainer.steps // given.evaluations) == 0:
            tell(perplexity=trainer.evaluate(512, 64))
        if given.save_every and trainer.step_number % given.save_every == 0:
            trainer.save(given.out / "checkpoint.pt")
    tell(perplexity=trainer.evaluate(512, 64))
    for sparse in (False, True):
        tell(length=4096, sparse=sparse, perplexity=trainer.evaluate(4096, 8, sparse))


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of activations")
    parser.add_argument("--steps", type=int, help="length of the run; otherwise what fits --seconds")
    parser.add_argument("--seconds", type=float, default=500, help="of training, since the start")
    parser.add_argument("--stop-after", type=float, default=1e9, help="seconds after which no step begins")
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=16)
    parser.add_argument("--save-every", type=int, default=0, help="a multiple of 4")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--cache", type=Path, help="compiled code, used if it is there and written after --warm"
    )
    parser.add_argument(
        "--warm", type=int, default=0, help="only this many steps of every phase, with their times"
    )
    return parser.parse_args()


def warm(trainer: Trainer, given: argparse.Namespace, began: float) -> None:
    """A few steps of every phase: compiles everything and tells what a step costs."""
    for phase in PHASES:
        for number in range(given.warm):
            before = time.monotonic()
            losses = {name: round(float(value), 4) for name, value in trainer.step(phase).items()}
            spent = time.monotonic() - before
            told = f"{phase} {number}: {spent:.3f} s, {given.batch_tokens / spent:.0f} tok/s {losses}"
            print(f"{time.monotonic() - began:6.1f} s {told}", flush=True)
        if given.device == "cuda":
            print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB", flush=True)
            if phase.drafts and not phase.rounding:
                profile(trainer, phase)


def profile(trainer: Trainer, phase: Phase) -> None:
    """Where one step's time on the device goes."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as found:
        trainer.step(phase)
        torch.cuda.synchronize()
    table = found.key_averages()
    for event in sorted(table, key=lambda e: -e.self_device_time_total)[:28]:
        print(f"{event.self_device_time_total / 1e3:8.2f} ms {event.count:5d} {event.key[:90]}", flush=True)


def main() -> None:
    """One run."""
    began = time.monotonic()
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(TINY if given.tiny else ModelConfig(), given)
    count = sum(p.numel() for p in trainer.model.parameters())
    print(f"{count / 1e6:.2f} M parameters, {torch.__version__}", flush=True)
    if given.resume:
        trainer.load(given.out / "checkpoint.pt")
    if given.cache and given.cache.is_file():
        torch.compiler.load_cache_artifacts(given.cache.read_bytes())
    if given.warm:
        trainer.steps = trainer.steps or 10**6
        warm(trainer, given, began)
        if given.cache and (found := torch.compiler.save_cache_artifacts()):
            given.cache.write_bytes(found[0])
    else:
        run(trainer, given, began)
    write_packed(trainer.model, given.out)
    print(f"done after {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
