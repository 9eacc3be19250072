"""Whether ninfer says what transformers says: greedy tokens and log-probabilities of an artifact.

    python -m tools.demo_model.compare_transformers demo.ninfer --count 100

ninfer answers prompts of held-out conversations greedily on the host device. transformers, with
the artifact's decoded weights in float32, reads prompt and answer in one pass: where its most
likely token is the answer's at each place, its own greedy answer is the same, by induction. After
a difference the places behind it are still compared, given what ninfer said. A difference between
tokens whose logits are closer than rounding can tell apart is a tie and reported as one.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ninfer.config import EngineConfig, KvDtype
from ninfer.generation import SamplingParams
from ninfer.runtime import Engine, RequestOptions, Scorer
from tools.demo_model.acceptance import conversations, prompts
from tools.demo_model.stored import load

SEED: Final = 3_000_000
TIE: Final = 1e-4
_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"
_NOT_FOR_CONFIG: Final = ("architectures", "model_type", "dtype", "torch_dtype")
_CONTEXT: Final = 2048


@dataclass(frozen=True, slots=True)
class Difference:
    """A place at which transformers prefers another token.

    Attributes:
        conversation: its number.
        place: index in the answer.
        said: ninfer's token.
        preferred: transformers' token.
        gap: how much larger its logit is.
    """

    conversation: int
    place: int
    said: int
    preferred: int
    gap: float

    @property
    def is_tie(self) -> bool:
        """Whether rounding may decide."""
        return self.gap < TIE


def reference(path: Path) -> Any:
    """Return the artifact's model in transformers, float32."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    stored = load(path, torch.device("cpu"))
    fields = {n: value for n, value in stored.config.items() if n not in _NOT_FOR_CONFIG}
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**fields)).float()
    weights = {n: value for n, value in stored.text.items() if n.startswith("model.")}
    weights[_HEAD] = weights[_EMBEDDING]
    model.load_state_dict(weights)
    return model.eval()


def answers(path: Path, starts: Sequence[Sequence[int]], limit: int) -> tuple[list[list[int]], int]:
    """Return ninfer's greedy answers and the number of ids it may choose from."""
    config = EngineConfig(
        device="host", kv_dtype=KvDtype.F32, max_context=_CONTEXT, shrinks_context=True
    )
    options = RequestOptions(sampling=SamplingParams(temperature=0), max_new_tokens=limit)
    with Engine(path, config=config) as engine:
        frontend = engine.frontend
        found = [
            list(engine.generate(frontend.prepare_tokens(start), options).token_ids)
            for start in starts
        ]
        return found, frontend.tokenizer.addressable


def log_probabilities(path: Path, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return ninfer's log-probability of each token of a text but the first."""
    config = EngineConfig(
        device="host", kv_dtype=KvDtype.F32, max_context=_CONTEXT, shrinks_context=True
    )
    with Scorer(path, config=config) as scorer:
        return [
            torch.tensor(scorer.score(text).logprobs[1:], dtype=torch.float64) for text in texts
        ]


def differences(number: int, logits: Tensor, answer: Sequence[int]) -> list[Difference]:
    """Return the places at which the most likely token is not the answer's.

    Args:
        number: of the conversation.
        logits: [answer, ids] before each of the answer's tokens.
        answer: ninfer's.
    """
    best = logits.max(-1)
    said = torch.tensor(answer)
    gaps = best.values - logits.gather(1, said[:, None])[:, 0]
    return [
        Difference(number, place, answer[place], int(best.indices[place]), float(gaps[place]))
        for place in (best.indices != said).nonzero()[:, 0].tolist()
    ]


@torch.no_grad()
def compare(path: Path, count: int, seed: int, limit: int) -> tuple[list[Difference], float, int]:
    """Compare.

    Returns:
        All differences, the largest difference of a log-probability, and the number of answer
        tokens.
    """
    starts = list(prompts(conversations(count, seed)))
    said, addressable = answers(path, starts, limit)
    texts = [[*start, *answer] for start, answer in zip(starts, said, strict=True)]
    scores = log_probabilities(path, texts)
    model = reference(path)
    found: list[Difference] = []
    worst = 0.0
    for number, (start, answer, text) in enumerate(zip(starts, said, texts, strict=True)):
        logits = model(torch.tensor([text])).logits[0, :-1, :addressable]
        found += differences(number, logits[len(start) - 1 :], answer)
        following = torch.tensor(text[1:])[:, None]
        true = logits.double().log_softmax(-1).gather(1, following)[:, 0]
        worst = max(worst, float((true - scores[number]).abs().max()))
    return found, worst, sum(map(len, said))


def main(arguments: list[str] | None = None) -> int:
    """Compare, print what differs; the exit code is 1 when more than ties differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.compare_transformers")
    parser.add_argument("model", type=Path, help="artifact")
    parser.add_argument("--count", type=int, default=100, help="conversations (default: 100)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--limit", type=int, default=400, help="most tokens of an answer")
    options = parser.parse_args(arguments)
    found, worst, tokens = compare(options.model, options.count, options.seed, options.limit)
    wrong = [one for one in found if not one.is_tie]
    for one in found:
        kind = "tie" if one.is_tie else "MISMATCH"
        print(
            f"{kind}: conversation {one.conversation}, token {one.place}: ninfer {one.said},"
            f" transformers {one.preferred}, logits {one.gap:.3g} apart"
        )
    with_mismatch = len({one.conversation for one in wrong})
    print(
        f"{options.count - with_mismatch} of {options.count} conversations agree in all of"
        f" {tokens} tokens; {len(wrong)} mismatches, {len(found) - len(wrong)} ties;"
        f" largest difference of a log-probability {worst:.2g}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
