"""Training of the trunk: loss, probes, and the loop of the first phase."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tools.demo_model import schedule
from tools.demo_model.model import Trunk
from tools.demo_model.mtp import ahead
from tools.demo_model.optimizer import Copier, Optimizer
from tools.demo_model.pool import Batch, Pool
from tools.demo_model.progress import Clock, Log

_Z_LOSS: Final = 1e-5

Criterion = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits, targets and weights to a loss."""


def trunk_loss(trunk: Trunk, batch: Batch, criterion: Criterion) -> Tensor:
    """Return the weighted mean loss of the next token."""
    tokens, positions, weights = batch
    hidden, _ = trunk(tokens, positions)
    return criterion(trunk.logits(hidden), ahead(tokens, 1), weights)


def next_token_loss(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return weighted mean cross entropy; a little extra keeps the normaliser near one."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(wide)
    normaliser = logits.logsumexp(-1)
    loss = normaliser - logits.gather(-1, target[..., None])[..., 0]
    loss = loss + _Z_LOSS * normaliser.square()
    return (loss * weight).sum() / weight.sum().clamp(min=1)


@torch.no_grad()
def probe(trunk: Trunk, batch: Batch) -> tuple[float, float]:
    """Return the share of right choices in what assistants say, and of wholly right rows' runs.

    A run is an uninterrupted stretch of assistant text; it counts when each token is right.
    """
    tokens, positions, weights = batch
    hidden, _ = trunk(tokens, positions)
    is_right = trunk.logits(hidden).argmax(-1) == ahead(tokens, 1)
    is_said = weights >= 1
    share = (is_right & is_said).sum() / is_said.sum().clamp(min=1)
    is_first = is_said & ~torch.nn.functional.pad(is_said, (1, 0))[:, :-1]
    run = is_first.flatten().cumsum(0) - 1
    count = int(is_first.sum())
    wrong = torch.zeros(max(count, 1), device=tokens.device)
    missed = (is_said & ~is_right).flatten()
    wrong.index_add_(0, run[missed], torch.ones_like(run[missed], dtype=wrong.dtype))
    return float(share), float((wrong == 0).float().mean())


@dataclass(slots=True)
class TrunkPhase:
    """The first phase.

    Attributes:
        trunk, optimizer, pool, log: what it works with.
        plan: of the whole run.
        storage: what stored weights are, for the last part.
        peak: learning rate.
        num_rows: of a batch.
        save: called with the phase's clock about once a minute.
        criterion: loss of the next token.
    """

    trunk: Trunk
    optimizer: Optimizer
    pool: Pool
    log: Log
    plan: schedule.Plan
    storage: Copier
    peak: float
    num_rows: int
    save: Callable[[Clock], None]
    criterion: Criterion = next_token_loss

    def run(self, clock: Clock) -> None:
        """Train until the phase's time is gone."""
        self._republish(clock.share)
        while clock.share < 1:
            rate = schedule.rate(clock.share, self.peak)
            if clock.steps % 8 == 0:
                self.pool.refresh(1)
            batch = self.pool.deal(self.num_rows)
            loss = trunk_loss(self.trunk, batch, self.criterion)
            loss.backward()
            norm = self.optimizer.step(rate)
            self._republish(clock.share)
            clock.tick(batch[0].numel())
            if self.log.is_due(clock):
                self._report(clock, loss, norm, rate)
            if clock.is_save_due():
                self.save(clock)

    def _republish(self, share: float) -> None:
        is_stored = self.plan.is_behind_storage(share)
        self.optimizer.publish(self.storage if is_stored else None)

    def _report(self, clock: Clock, loss: Tensor, norm: Tensor, rate: float) -> None:
        values = {"loss": float(loss.detach()), "norm": float(norm), "rate": rate}
        if self.pool.probes is not None and self.log.count % 4 == 0:
            # Another shape and no gradients: not worth compiling for.
            with torch.compiler.set_stance("force_eager"):
                values["token"], values["run"] = probe(self.trunk, self.pool.probes)
        values |= {"epochs": self.pool.epochs, "rows": self.pool.num_rows}
        self.log.line("trunk", clock, values)
