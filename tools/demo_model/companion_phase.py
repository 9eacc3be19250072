"""Training of MTP head and drafter on the hidden states of the finished trunk."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from tools.demo_model import schedule
from tools.demo_model.dflash import Drafter, choose_anchors, draft_losses
from tools.demo_model.model import Trunk
from tools.demo_model.mtp import Criterion, MtpHead, mtp_losses, mtp_targets, weighted_loss
from tools.demo_model.optimizer import Optimizer
from tools.demo_model.pool import Batch, Pool
from tools.demo_model.progress import Clock, Log
from tools.demo_model.storage_formats import companion_storage

MTP_STEPS: Final = 3


class Companions(nn.Module):
    """Both heads, under the names that masters have."""

    def __init__(self, mtp: MtpHead, draft: Drafter) -> None:
        super().__init__()
        self.mtp = mtp
        self.draft = draft


def companion_loss(
    companions: Companions, trunk: Trunk, batch: Batch, num_anchors: int, criterion: Criterion
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the joint loss and the shares of right proposals of MTP and drafter.

    Only what the assistant says counts.
    """
    tokens, positions, weights = batch
    weights = (weights >= 1).to(weights.dtype)
    with torch.no_grad():
        hidden, features = trunk(tokens, positions, trunk.geometry.draft.target_layers)
        greedy = trunk.logits(hidden).argmax(-1)
    targets = mtp_targets(greedy, tokens, weights, positions, MTP_STEPS)
    mtp, mtp_hits = mtp_losses(companions.mtp, trunk, hidden, tokens, positions, targets, criterion)
    anchors = choose_anchors(weights, num_anchors)
    draft, draft_hits = draft_losses(
        companions.draft,
        trunk,
        features,
        (tokens, positions, weights),
        greedy,
        anchors,
        criterion=criterion,
    )
    return mtp + draft, mtp_hits, draft_hits


@dataclass(slots=True)
class CompanionPhase:
    """The second phase.

    Attributes:
        companions, trunk, optimizer, pool, log: what it works with.
        peak: learning rate.
        num_rows: of a batch.
        num_anchors: blocks of the drafter in each row.
        save: called with the phase's clock about once a minute.
        criterion: loss of one choice.
    """

    companions: Companions
    trunk: Trunk
    optimizer: Optimizer
    pool: Pool
    log: Log
    peak: float
    num_rows: int
    num_anchors: int
    save: Callable[[Clock], None]
    criterion: Criterion = weighted_loss

    def run(self, clock: Clock) -> None:
        """Train until the phase's time is gone."""
        self.optimizer.publish(companion_storage)
        while clock.share < 1:
            rate = schedule.rate(clock.share, self.peak)
            batch = self.pool.deal(self.num_rows)
            loss, mtp_hits, draft_hits = companion_loss(
                self.companions, self.trunk, batch, self.num_anchors, self.criterion
            )
            loss.backward()
            norm = self.optimizer.step(rate)
            self.optimizer.publish(companion_storage)
            clock.tick(batch[0].numel())
            if self.log.is_due(clock):
                values = {"loss": float(loss.detach()), "norm": float(norm), "rate": rate}
                values["mtp"] = expected_tokens(mtp_hits)
                values["draft"] = expected_tokens(draft_hits)
                self.log.line("companions", clock, values)
            if clock.is_save_due():
                self.save(clock)


def expected_tokens(hits: Tensor) -> float:
    """Return tokens of a round if each proposal is right with its share, given those before it."""
    return 1 + float(hits.cumprod(0).sum())
