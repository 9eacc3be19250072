"""Decode rounds one by one from the start of an engine: which are slow, and where their time is.

    python -m benchmarks.first_rounds FOLDER MODEL[:PROFILE] [MODEL...] [--prompt 8192] [--idle]

Two requests of the same kind behind one another, of 200 tokens each, on synthetic weights. For each
round: enqueuing it on the host; what the device idles before it and works on it, by marks on its
stream; the wait for its result; and the host's time from one result to the next, beside the
collections of garbage in it. A cost of first use shows in the first request alone, one of the
prompt before it in both. Then the same prompt once more beside a request that decodes: the longest
wait for a token is what a part of a chunk costs. FOLDER holds prebuilt kernels; with ``--idle`` no
card is needed, and only the host's columns mean anything.
"""

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ninfer import model_stack
from ninfer.config import EngineConfig
from ninfer.frontend.frontend import OutputOptions
from ninfer.generation import CacheMode, SamplingParams
from ninfer.models.package import GROUPWISE_INT
from ninfer.runtime import Engine, GenerationHandle, RequestOptions, SyntheticModel

ROUNDS: Final = 200
SHOWN: Final = 6
LONGEST: Final = 3


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds of one round.

    Attributes:
        launch: enqueuing it on the host.
        idle: of the device, since the result of the round before.
        device: its work.
        wait: of the host for its result.
        period: on the host, since the result of the round before.
        collections: of garbage since then.
    """

    launch: float
    idle: float
    device: float
    wait: float
    period: float
    collections: int


class Probe:
    """Stands before the decode rounds of an engine, and notes each."""

    def __init__(self, engine: Engine) -> None:
        rounds = engine.measurement.rounds
        rounds.round_times()  # marks are set from here on
        self._decode: Any = rounds._on_device.decode
        self._launch, self._collect = self._decode.launch, self._decode.collect
        self._launched: dict[int, float] = {}
        self._last: Any = None
        self._last_at = 0.0
        self._last_collections = 0
        self.found: list[Round] = []
        vars(self._decode).update(launch=self.launch, collect=self.collect)

    def launch(self, rows: Any, sources: Sequence[int] = ()) -> Any:
        """Enqueue a round."""
        begin = time.perf_counter()
        chosen = self._launch(rows, sources)
        self._launched[id(chosen)] = (time.perf_counter() - begin) * 1e3
        return chosen

    def collect(self, chosen: Any) -> Any:
        """Wait for a round."""
        begin = time.perf_counter()
        tokens = self._collect(chosen)
        now, collections = time.perf_counter(), sum(each["collections"] for each in gc.get_stats())
        is_first = self._last is None
        self.found.append(
            Round(
                launch=self._launched.pop(id(chosen)),
                idle=0.0 if is_first else chosen.begun.elapsed_ms(self._last),
                device=chosen.arrival.elapsed_ms(chosen.begun),
                wait=(now - begin) * 1e3,
                period=0.0 if is_first else (now - self._last_at) * 1e3,
                collections=0 if is_first else collections - self._last_collections,
            )
        )
        self._last, self._last_at, self._last_collections = chosen.arrival, now, collections
        return tokens

    def take(self) -> list[Round]:
        """Rounds since the last call."""
        found, self.found, self._last = self.found, [], None
        self._launched.clear()
        return found


def submitted(engine: Engine, prompt_tokens: int, new_tokens: int) -> GenerationHandle:
    """A greedy request that does not end before its budget."""
    options = RequestOptions(
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=new_tokens,
        output=OutputOptions(ignore_eos=True),
        cache=CacheMode.DISABLED,
    )
    prepared = engine.frontend.prepare_tokens([1 + 7919 * n % 500 for n in range(prompt_tokens)])
    return engine.submit(prepared, options)


def row(name: str, found: Round) -> str:
    """One line of the table."""
    times = (found.launch, found.idle, found.device, found.wait, found.period)
    return f"{name:>14}" + "".join(f"{value:9.3f}" for value in times) + f"{found.collections:5}"


def typical(rounds: Sequence[Round]) -> Round:
    """Median of each column."""

    def middle(name: str) -> float:
        return sorted(float(getattr(each, name)) for each in rounds)[len(rounds) // 2]

    return Round(
        launch=middle("launch"),
        idle=middle("idle"),
        device=middle("device"),
        wait=middle("wait"),
        period=middle("period"),
        collections=sum(each.collections for each in rounds),
    )


def report(title: str, rounds: Sequence[Round]) -> None:
    """The first rounds, the typical one, and the longest of the others."""
    say = sys.stdout.write
    say(f"{title}: {len(rounds)} rounds, ms\n")
    say(f"{'round':>14}   launch     idle   device     wait   period   gc\n")
    for number, found in enumerate(rounds[:SHOWN]):
        say(row(str(number), found) + "\n")
    say(row("median", typical(rounds[SHOWN:])) + "\n")
    order = sorted(range(SHOWN, len(rounds)), key=lambda n: -rounds[n].period)
    for number in order[:LONGEST]:
        say(row(f"slow: {number}", rounds[number]) + "\n")
    quarters = [rounds[first : first + 50] for first in range(0, len(rounds), 50)]
    means = (sum(each.device for each in part) / len(part) for part in quarters if part)
    say("  device, means of 50: " + " ".join(f"{mean:.3f}" for mean in means) + "\n")


def measure(source: SyntheticModel, prompt_tokens: int) -> None:
    """Start an engine, and watch its first rounds."""
    config = EngineConfig(
        device="0",
        max_concurrency=2,
        max_context=prompt_tokens + 4 * ROUNDS,
        shrinks_context=True,
    )
    with Engine(source, config=config) as engine:
        chunk = engine.measurement.rounds._on_device.chunk_tokens
        sys.stdout.write(f"== {source.model_id} {source.weights_id}, chunks of {chunk}\n")
        prompt_tokens = min(prompt_tokens, engine.config.max_context - ROUNDS)
        probe = Probe(engine)
        for title in ("first request", "second request"):
            timings = submitted(engine, prompt_tokens, ROUNDS).result().timings
            report(title, probe.take())
            rate = (ROUNDS - 1) / timings.decode_s
            sys.stdout.write(
                f"  to the first token {timings.prefill_s * 1e3:.1f} ms, then {rate:.1f} tok/s\n"
            )
        decoding = submitted(engine, 16, 3 * ROUNDS)
        time.sleep(0.1)
        prefill_s = submitted(engine, prompt_tokens, 1).result().timings.prefill_s
        decoding.result()
        longest = max(each.period for each in probe.take())
        sys.stdout.write(
            f"the prompt beside one that decodes: {prefill_s * 1e3:.1f} ms; the longest wait for a "
            f"token {longest:.1f} ms\n"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--idle", action="store_true", help="without a card")
    options = parser.parse_args()
    if options.idle:
        from benchmarks.idle_device import IdleDevice

        model_stack._open_cuda = lambda ordinal: IdleDevice()  # type: ignore[assignment,return-value]
    else:
        from ninfer.cuda.device import CudaDevice
        from ninfer.cuda.module import prebuilt

        cache = prebuilt(options.folder)
        model_stack._open_cuda = lambda ordinal: CudaDevice(ordinal, cache)
    for name in options.models:
        measure(SyntheticModel(*(*name.split(":"), GROUPWISE_INT)[:2]), options.prompt)


if __name__ == "__main__":
    main()
