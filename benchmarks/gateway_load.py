"""Load on the HTTP server alone: eight streams of 200 tokens a second on a scripted program.

Measured are the delay from the commit of a token to the arrival of its event at a client in another
process (both read the same monotonic clock), the answer time of ``/health`` meanwhile, and the
processor time of the serving process for each token.

Run: ``python -m benchmarks.gateway_load [seconds]``.
"""

import argparse
import http.client
import itertools
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ninfer.program.contract import PendingBatch, RowDecision
from tests.support.gateway_server import running_server
from tests.support.scripted_engine import ScriptedEngine

CLIENT = "--client"
NUM_CLIENTS = 8
TOKENS_PER_S = 200
HEALTH_INTERVAL_S = 0.1


class Pace:
    """Starts a round every 5 ms at most."""

    def __init__(self) -> None:
        self.next_round = 0.0

    def __call__(self, call: str) -> None:
        """Called before every call of the program."""
        if call == "decode":
            now = time.monotonic()
            self.next_round = max(self.next_round + 1 / TOKENS_PER_S, now - 0.05)
            time.sleep(max(0.0, self.next_round - now))


def note_commits(engine: ScriptedEngine) -> dict[int, list[float]]:
    """Make the program note when it committed each token, by the number of the client."""
    commits: dict[int, list[float]] = defaultdict(list)
    numbers: dict[bytes, int] = {}
    commit = engine.program.commit

    def noted(batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        commit(batch, decisions)
        now = time.monotonic()
        for row in batch.rows:
            prompt = engine.program.books.sequence(row.sequence).prompt
            if prompt.identity not in numbers:
                text = engine.frontend.tokenizer.decode(prompt.token_ids).decode()
                found = re.search(r"client (\d)", text)
                numbers[prompt.identity] = int(found.group(1)) if found else -1
            commits[numbers[prompt.identity]].append(now)

    setattr(engine.program, "commit", noted)  # noqa: B010 - a method of this one object
    return commits


Arrival = tuple[float, int]
"""When an event with text arrived, and the characters of the answer up to its end."""


def read_stream(port: int, index: int, num_tokens: int, arrivals: list[Arrival]) -> None:
    """Read one stream and note the arrival of each event with text."""
    num_characters = 0
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {
        "messages": [{"role": "user", "content": f"client {index}"}],
        "max_tokens": num_tokens,
        "enable_thinking": False,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    while line := response.readline():
        if b'"delta":{"content":"' in line:
            now = time.monotonic()
            chunk = json.loads(line.removeprefix(b"data: "))
            num_characters += len(chunk["choices"][0]["delta"]["content"])
            arrivals.append((now, num_characters))
    connection.close()


def run_clients(port: int, num_tokens: int) -> None:
    """The client process: read every stream and write the arrivals as JSON."""
    arrivals: list[list[Arrival]] = [[] for _ in range(NUM_CLIENTS)]
    threads = [
        threading.Thread(target=read_stream, args=(port, index, num_tokens, arrivals[index]))
        for index in range(NUM_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    show(json.dumps(arrivals))


def delays_of(
    arrivals: Sequence[Arrival], commits: Sequence[float], ends: Sequence[int]
) -> Iterator[float]:
    """Seconds from the commit of each token to its arrival.

    An event holds several tokens when its reader fell behind.

    Args:
        arrivals: of one stream.
        commits: of the same stream's tokens.
        ends: characters of the answer up to the end of each token.
    """
    token = 0
    for at, num_characters in arrivals:
        while token < len(ends) and ends[token] <= num_characters:
            yield at - commits[token]
            token += 1


def quantile(values: Sequence[float], share: float) -> float:
    """Value below which a share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(line: str) -> None:
    """Write one line."""
    sys.stdout.write(line + "\n")


def main() -> None:
    """Run and print the figures."""
    if sys.argv[1:2] == [CLIENT]:
        run_clients(int(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=5.0)
    num_tokens = int(parser.parse_args().seconds * TOKENS_PER_S)
    pace = Pace()
    engine = ScriptedEngine(
        lambda prompt: "a " * num_tokens, max_concurrency=NUM_CLIENTS, max_context=16384, pace=pace
    )
    commits = note_commits(engine)
    health_s: list[float] = []
    with engine, running_server(engine) as server:
        command = [sys.executable, "-m", "benchmarks.gateway_load", CLIENT, str(server.port)]
        used_s, started = time.process_time(), time.monotonic()
        clients = subprocess.Popen([*command, str(num_tokens)], stdout=subprocess.PIPE)
        while clients.poll() is None and (num_seen := len(commits[0])) < num_tokens:
            asked = time.monotonic()
            server.get("/health")
            if num_seen:
                health_s.append(time.monotonic() - asked)
            time.sleep(HEALTH_INTERVAL_S)
        arrivals: list[list[Arrival]] = json.loads(clients.communicate()[0])
        elapsed_s, used_s = time.monotonic() - started, time.process_time() - used_s
    tokenizer = engine.frontend.tokenizer
    answer = tokenizer.encode("a " * num_tokens, parse_special=True)[:num_tokens]
    ends = list(itertools.accumulate(len(tokenizer.piece(token)) for token in answer))
    delays = [
        delay
        for index, each in enumerate(arrivals)
        for delay in delays_of(each, commits[index], ends)
    ]
    num_events = len(delays)
    show(f"{num_events} tokens in {elapsed_s:.1f} s, {num_events / elapsed_s:.0f}/s")
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        show(f"event delay {name}: {quantile(delays, share) * 1e3:.2f} ms")
    show(
        f"/health p50 {statistics.median(health_s) * 1e3:.1f} ms, max {max(health_s) * 1e3:.1f} ms"
    )
    show(f"processor time of the server: {used_s / num_events * 1e6:.0f} us a token")


if __name__ == "__main__":
    main()
