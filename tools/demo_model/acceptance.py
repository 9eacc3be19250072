"""Tokens of a speculative round on held-out conversations, by an offline reference in torch.

    python -m tools.demo_model.acceptance demo.ninfer --count 100

The text is what the trunk itself says, greedily, behind prompts of held-out conversations. Rounds
are then walked over it as an engine would: the first anchor is the prompt's last token, a round
emits the accepted proposals and one token more. The trunk's own text decides what is accepted, so
one pass over it knows all of its rounds. Source: the model contract, MTP and DFlash2.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tools.demo_model.data.conversation import Conversation
from tools.demo_model.data.encoding import encode_all, tokenizer
from tools.demo_model.data.mixture import skills
from tools.demo_model.data.stream import held_out
from tools.demo_model.dflash import Drafter
from tools.demo_model.gated_delta import CHUNK
from tools.demo_model.greedy import continuations
from tools.demo_model.model import Trunk
from tools.demo_model.mtp import MtpHead
from tools.demo_model.stored import load

MTP_STEPS: Final = 3
SEED: Final = 2_000_000
WANTED: Final = {"mtp": 2.5, "dflash2": 3.5}
_STOP: Final = "<|im_end|>"
_BLOCKS_AT_ONCE: Final = 64


@dataclass(slots=True)
class Rounds:
    """Rounds of one way of drafting.

    Attributes:
        accepted: proposals of each round.
        emitted: tokens of all rounds; the last round of a text ends with the text.
    """

    accepted: list[int] = field(default_factory=list)
    emitted: int = 0

    @property
    def tokens_per_round(self) -> float:
        """Mean over all rounds."""
        return self.emitted / max(1, len(self.accepted))

    def reach(self, proposals: int) -> list[float]:
        """Share of the rounds in which proposal 1, 2, ... was accepted."""
        count = max(1, len(self.accepted))
        return [sum(a >= n for a in self.accepted) / count for n in range(1, proposals + 1)]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the trunk says behind it."""

    tokens: list[int]
    prompt_tokens: int


def prompts(found: Sequence[Conversation]) -> Iterator[list[int]]:
    """Tokens of each conversation up to the last thing the assistant is to say."""
    for token_ids, mask in encode_all(found):
        last = max(i for i, is_learned in enumerate(mask) if is_learned)
        first = next((i for i in range(last, -1, -1) if not mask[i]), -1) + 1
        yield token_ids[:first]


def conversations(count: int, seed: int) -> list[Conversation]:
    """Held-out conversations, the skills in turn."""
    names = skills()
    each = -(-count // len(names))
    dealt = zip(*(held_out(name, each, seed) for name in names), strict=True)
    return list(itertools.islice(itertools.chain.from_iterable(dealt), count))


def walk(text: Text, accepted_at: Sequence[int], rounds: Rounds) -> None:
    """Walk the rounds of a text.

    Args:
        text: of the trunk.
        accepted_at: for each anchor index how many proposals behind it the trunk agrees with.
        rounds: where they are counted.
    """
    anchor, last = text.prompt_tokens - 1, len(text.tokens) - 1
    while anchor < last:
        accepted = min(accepted_at[anchor], last - anchor)
        rounds.accepted.append(accepted)
        emitted = min(accepted + 1, last - anchor)
        rounds.emitted += emitted
        anchor += emitted


def leading(is_right: Tensor) -> Tensor:
    """Return how many of the last axis are true before the first that is not."""
    return is_right.long().cumprod(-1).sum(-1)


def behind(tokens: Tensor, places: Tensor) -> Tensor:
    """Return the tokens at places; -1 past the end, which no proposal is equal to."""
    padded = torch.nn.functional.pad(tokens, (0, 1), value=-1)
    return padded[places.clamp(max=len(tokens))]


def mtp_accepted(
    head: MtpHead, trunk: Trunk, hidden: Tensor, tokens: Tensor, addressable: int
) -> list[int]:
    """Return, for each anchor, how many proposals of the chain the text goes on with.

    A later step is fed with the text's own token, which is the proposal itself as long as all
    before it were right; what follows a wrong one does not count.

    Args:
        head: of the artifact.
        trunk: its embedding and head.
        hidden: [tokens, hidden] final hidden states.
        tokens: [tokens] of the text.
        addressable: ids below it may be proposed.
    """
    count = len(tokens)
    positions = torch.arange(count, device=tokens.device)[None]
    outputs = head(hidden[None], trunk.embed_tokens(tokens)[None], positions, MTP_STEPS)
    proposed = torch.stack(
        [trunk.logits(output[0])[:, :addressable].argmax(-1) for output in outputs], -1
    )
    # Entry t joins the hidden state of t with token t + 1, the anchor.
    places = (
        torch.arange(count, device=tokens.device)[:, None]
        + 2
        + torch.arange(MTP_STEPS, device=tokens.device)
    )
    return [0, *leading(proposed == behind(tokens, places)).tolist()]


def draft_accepted(
    drafter: Drafter, trunk: Trunk, features: list[Tensor], text: Text, addressable: int
) -> list[int]:
    """Return the same for DFlash2 blocks; anchors inside the prompt are not computed."""
    device = features[0].device
    tokens = torch.tensor(text.tokens, device=device)
    size = drafter.geometry.draft.block_size
    positions = torch.arange(len(tokens), device=device)[None]
    offsets = torch.arange(1, size, device=device)
    found = [0] * (text.prompt_tokens - 1)
    anchors = torch.arange(text.prompt_tokens - 1, len(tokens), device=device)
    for part in anchors.split(_BLOCKS_AT_ONCE):
        inputs = torch.full((1, len(part), size), drafter.geometry.mask_token_id, device=device)
        inputs[0, :, 0] = tokens[part]
        hidden = drafter(features, positions, part[None], trunk.embed_tokens(inputs), size)
        proposed = candidate_walk(drafter, trunk, hidden[0, :, 1:], tokens[part], addressable)
        is_right = proposed == behind(tokens, part[:, None] + offsets)
        found += leading(is_right).tolist()
    return found


def candidate_walk(
    drafter: Drafter, trunk: Trunk, hidden: Tensor, anchors: Tensor, addressable: int
) -> Tensor:
    """Return the proposals [blocks, K] that the selector walks through without chance.

    Args:
        drafter: whose selector it is.
        trunk: its head.
        hidden: [blocks, K, hidden] of the mask rows.
        anchors: [blocks] ids.
        addressable: ids below it are candidates.
    """
    selector, top_k = drafter.candidate_selector, drafter.geometry.draft.selector_top_k
    logits = trunk.logits(hidden)[..., :addressable]
    # Stable: of equal logits the lower id comes first.
    values, ids = (part[..., :top_k] for part in logits.sort(dim=-1, descending=True, stable=True))
    previous, chosen = anchors, []
    for index in range(hidden.shape[1]):
        edge = selector.edge(hidden[:, index], previous)
        codes = torch.nn.functional.embedding(ids[:, index], selector.successor_codebook)
        scores = values[:, index] + torch.einsum("br,bcr->bc", edge, codes)
        place = scores.argmax(-1, keepdim=True)
        previous = ids[:, index].gather(1, place)[:, 0]
        chosen.append(previous)
    return torch.stack(chosen, 1)


@torch.no_grad()
def measure(path: Path, count: int, seed: int, limit: int, device: torch.device) -> dict[str, Any]:
    """Measure both ways of drafting.

    Returns:
        For each way the rounds, tokens of a round and shares of accepted proposals.
    """
    models = load(path, device)
    trunk, stop = models.trunk, tokenizer().token_to_id(_STOP)
    addressable = tokenizer().get_vocab_size()
    starts = list(prompts(conversations(count, seed)))
    answers = continuations(trunk, starts, stop, limit, addressable)
    mtp, dflash2 = Rounds(), Rounds()
    for start, answer in zip(starts, answers, strict=True):
        text = Text([*start, *answer], len(start))
        tokens = torch.tensor(text.tokens, device=device)
        hidden, features = run_trunk(trunk, tokens)
        if models.mtp is not None:
            walk(text, mtp_accepted(models.mtp, trunk, hidden, tokens, addressable), mtp)
        if models.draft is not None:
            walk(text, draft_accepted(models.draft, trunk, features, text, addressable), dflash2)
    sizes = (MTP_STEPS, models.geometry.draft.block_size - 1)
    return {
        "conversations": count,
        "seed": seed,
        "tokens": sum(map(len, answers)),
        **{
            name: {
                "proposals": size,
                "rounds": len(rounds.accepted),
                "tokens_per_round": round(rounds.tokens_per_round, 4),
                "accepted": [round(share, 4) for share in rounds.reach(size)],
            }
            for name, rounds, size in zip(WANTED, (mtp, dflash2), sizes, strict=True)
            if rounds.accepted
        },
    }


def run_trunk(trunk: Trunk, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return final hidden states [tokens, hidden] and tapped streams [1, tokens, hidden]."""
    count = len(tokens)
    padded = torch.nn.functional.pad(tokens, (0, -count % CHUNK))[None]
    positions = torch.arange(padded.shape[1], device=tokens.device)[None]
    hidden, features = trunk(padded, positions, trunk.geometry.draft.target_layers)
    return hidden[0, :count], [feature[:, :count] for feature in features]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether it is enough."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.acceptance")
    parser.add_argument("model", type=Path, help="artifact, or folder of an export")
    parser.add_argument("--count", type=int, default=100, help="conversations (default: 100)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--limit", type=int, default=400, help="most tokens of an answer")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args(arguments)
    results = measure(
        options.model, options.count, options.seed, options.limit, torch.device(options.device)
    )
    text = json.dumps(results, indent=1) + "\n"
    print(text, end="")
    if options.json is not None:
        options.json.write_text(text, encoding="utf-8")
    is_enough = [
        name in results and results[name]["tokens_per_round"] >= wanted
        for name, wanted in WANTED.items()
    ]
    return 0 if all(is_enough) else 1


if __name__ == "__main__":
    sys.exit(main())
