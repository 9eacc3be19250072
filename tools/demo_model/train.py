"""Train the demo model: data, trunk, companions, export, in a given time.

    python -m tools.demo_model.train --output DIR --minutes 8

A run that was stopped goes on from its last checkpoint when it is started again. The last line of
the log is ``DONE`` with totals; a file of that name appears beside the export.
"""

import argparse
import os
import time
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

import torch

from tools.demo_model import checkpoint, geometry
from tools.demo_model.companion_phase import CompanionPhase, Companions
from tools.demo_model.dflash import Drafter
from tools.demo_model.export import export, tokenizer_size
from tools.demo_model.gated_delta import agrees, chunked_delta_rule, flash_delta_rule
from tools.demo_model.geometry import DemoGeometry
from tools.demo_model.model import Trunk, narrow_matrices, use_rule
from tools.demo_model.mtp import MtpHead, weighted_loss
from tools.demo_model.optimizer import Optimizer
from tools.demo_model.packing import DataPlan
from tools.demo_model.parts import split
from tools.demo_model.pool import Pool
from tools.demo_model.progress import Clock, Log
from tools.demo_model.schedule import Plan
from tools.demo_model.storage_formats import TrunkStorage
from tools.demo_model.trunk_phase import TrunkPhase, next_token_loss

TOKENIZER: Final = Path(__file__).parent / "tokenizer"
SOURCE: Final = "tools.demo_model.data.stream:conversations"
NUM_PROBES: Final = 32


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training (default: 8)")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, metavar="DIR")
    parser.add_argument("--source", default=SOURCE, help="module:function that makes conversations")
    parser.add_argument("--rows", type=int, default=64, help="rows of a batch (default: 64)")
    parser.add_argument("--companion-rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row (default: 1024)")
    parser.add_argument("--anchors", type=int, default=64, help="drafter blocks in a row")
    parser.add_argument("--rate", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--trunk-share", type=float, default=0.68)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="data processes (default: up to 8)")
    parser.add_argument("--shard", type=int, default=8000, help="conversations of a data shard")
    parser.add_argument("--capacity", type=int, default=1_000_000, help="most rows to hold")
    parser.add_argument("--start-rows", type=int, default=2000, help="rows to wait for")
    parser.add_argument("--small", action="store_true", help="the rehearsal's geometry")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-fla", action="store_true", help="use the chunked form in torch")
    parser.add_argument("--parts", type=Path, help="also write the export as small files")
    return parser.parse_args(argv)


def choose_device() -> torch.device:
    """Return the accelerator if there is one, and set how float32 products run."""
    torch.set_float32_matmul_precision("high")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_rule(trunk: Trunk, device: torch.device, log: Log, is_plain: bool) -> None:
    """Use the fast kernel when it is there and right."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    rule = None if is_plain or device.type != "cuda" else flash_delta_rule()
    if rule is not None:
        is_right, error = agrees(rule, device, kind)
        log.say(f"flash-linear-attention: error {error:.2g}, {'used' if is_right else 'refused'}")
        if is_right:
            use_rule(trunk, rule)
            return
    is_right, error = agrees(chunked_delta_rule, device, kind)
    log.say(f"chunked form: error {error:.2g}")


def start_data(options: argparse.Namespace, folder: Path, log: Log) -> list[Popen[bytes]]:
    """Start the processes that make rows."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = DataPlan(
        options.source, folder, options.seed, options.length, options.shard, options.capacity
    )
    count = options.workers or min(8, max(1, (os.cpu_count() or 2) - 1))
    log.say(f"data: {count} processes")
    return [plan.start(index, count) for index in range(count)]


class Run:
    """One training run: models, optimizers, clocks and their checkpoint."""

    def __init__(self, options: argparse.Namespace, rows: Path, log: Log) -> None:
        """Build everything and take over a checkpoint.

        Args:
            options: of the command line.
            rows: folder in which data shards appear.
            log: of the run.
        """
        self.options, self.log = options, log
        self.device = choose_device()
        self.pool = Pool(rows, self.device, NUM_PROBES, options.seed, options.capacity)
        size = tokenizer_size(options.tokenizer)
        shape: DemoGeometry = (
            geometry.small(size) if options.small else geometry.for_vocabulary(size)
        )
        self.geometry = shape
        torch.manual_seed(options.seed)
        self.trunk = Trunk(shape).to(self.device)
        self.companions = Companions(MtpHead(shape), Drafter(shape)).to(self.device)
        choose_rule(self.trunk, self.device, log, options.no_fla)
        self.trunk_optimizer = Optimizer(named(self.trunk, "trunk."))
        self.optimizer = Optimizer(named(self.companions, ""))
        if self.device.type == "cuda":
            narrow_matrices(self.trunk, torch.bfloat16)
            narrow_matrices(self.companions, torch.bfloat16)
        self.plan = Plan(60 * options.minutes, options.trunk_share)
        self.clocks = (Clock(self.plan.trunk_seconds), Clock(self.plan.companion_seconds))
        self.storage = TrunkStorage(shape.head_dim, 2 * shape.num_key_heads * shape.delta_dim)
        options.output.mkdir(parents=True, exist_ok=True)
        state = checkpoint.load(options.output, self.device)
        if state is not None:
            self._restore(state)
        counts = [
            sum(p.numel() for p in m.parameters()) / 1e6
            for m in (self.trunk, *self.companions.children())
        ]
        log.say("parameters in millions: trunk {:.1f}, mtp {:.1f}, drafter {:.1f}".format(*counts))

    def save(self, clock: Clock) -> None:
        """Write a checkpoint."""
        began = time.perf_counter()
        state = {
            "trunk": self.trunk_optimizer.state(),
            "companions": self.optimizer.state(),
            "clocks": [each.state() for each in self.clocks],
            "pool": self.pool.state(),
            "random": random_state(self.device),
            "geometry": geometry.to_dict(self.geometry),
        }
        checkpoint.save(self.options.output, state)
        self.log.say(f"checkpoint in {time.perf_counter() - began:.1f} s at {clock.share:.2f}")

    def _restore(self, state: dict[str, Any]) -> None:
        if geometry.from_dict(state["geometry"]) != self.geometry:
            raise SystemExit(f"{self.options.output} holds a run of another geometry")
        self.trunk_optimizer.restore(state["trunk"])
        self.optimizer.restore(state["companions"])
        for clock, values in zip(self.clocks, state["clocks"], strict=True):
            clock.restore(values)
        self.pool.restore(state["pool"])
        set_random_state(self.device, state["random"])
        self.log.say(f"goes on from step {self.clocks[0].steps} + {self.clocks[1].steps}")

    def train(self) -> None:
        """Run what is left of both phases."""
        options, pool = self.options, self.pool
        next_loss, choice_loss = next_token_loss, weighted_loss
        if not options.no_compile:
            for module in (*self.trunk.layers, *self.companions.children()):
                module.compile(dynamic=False)
            next_loss = torch.compile(next_token_loss, dynamic=False)
            choice_loss = torch.compile(weighted_loss, dynamic=False)
        if self.clocks[0].share < 1:
            TrunkPhase(
                trunk=self.trunk,
                optimizer=self.trunk_optimizer,
                pool=pool,
                log=self.log,
                plan=self.plan,
                storage=self.storage,
                peak=options.rate,
                num_rows=options.rows,
                save=self.save,
                criterion=next_loss,
            ).run(self.clocks[0])
            self.save(self.clocks[0])
        self.trunk_optimizer.publish(self.storage)
        self.trunk.requires_grad_(False)
        CompanionPhase(
            companions=self.companions,
            trunk=self.trunk,
            optimizer=self.optimizer,
            pool=pool,
            log=self.log,
            peak=options.rate,
            num_rows=options.companion_rows,
            num_anchors=options.anchors,
            save=self.save,
            criterion=choice_loss,
        ).run(self.clocks[1])
        self.save(self.clocks[1])

    def finish(self) -> None:
        """Write the export and the marker."""
        options = self.options
        folder = options.output / "export"
        masters = {**self.trunk_optimizer.masters, **self.optimizer.masters}
        export(folder, self.geometry, masters, options.tokenizer)
        if options.parts is not None:
            split(folder, options.parts)
        tokens = " + ".join(f"{clock.tokens / 1e6:.0f}M" for clock in self.clocks)
        steps = " + ".join(str(clock.steps) for clock in self.clocks)
        line = f"DONE tokens {tokens}, steps {steps}"
        if self.device.type == "cuda":
            line += f", memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        self.log.say(line)
        (options.output / "DONE").write_text(line + "\n", encoding="utf-8")


def random_state(device: torch.device) -> torch.Tensor:
    """Return the state of the device's random numbers."""
    return torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()


def set_random_state(device: torch.device, state: torch.Tensor) -> None:
    """Go on from a state of the device's random numbers."""
    set_state = torch.cuda.set_rng_state if device.type == "cuda" else torch.set_rng_state
    set_state(state.cpu())


def named(module: torch.nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    """Return a module's parameters by name behind a prefix."""
    return {prefix + name: parameter for name, parameter in module.named_parameters()}


def main(argv: list[str] | None = None) -> int:
    """Train as the command line says."""
    options = arguments(argv)
    log = Log()
    folder = options.output / "rows"
    workers = start_data(options, folder, log)
    run = Run(options, folder, log)
    run.pool.wait(options.start_rows)
    log.say(f"{run.pool.num_rows} rows to begin with")
    run.train()
    for worker in workers:
        worker.terminate()
    run.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
