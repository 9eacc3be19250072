"""Conversations to rows of fixed length, and the processes that make them.

A row holds whole documents one after another, so one shape serves all batches. Weights say how
much predicting the NEXT token counts: nothing at a document's end and in padding, little for text
the model is given, all for what the assistant says. Knows no tensor library but NumPy.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Conversation = tuple[Any, Any]
"""Token ids, and for each whether the assistant says it."""
Source = Callable[[int, int, int], Iterable[Conversation]]
"""``source(seed, start, count)`` gives conversations ``start`` to ``start + count``."""

IGNORED: Final = 0
GIVEN: Final = 1
SAID: Final = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows, each array [rows, tokens].

    Attributes:
        tokens: ids.
        positions: inside the document.
        kinds: of the next token: `IGNORED`, `GIVEN` or `SAID`.
    """

    tokens: npt.NDArray[np.uint16]
    positions: npt.NDArray[np.uint16]
    kinds: npt.NDArray[np.uint8]


def pack(conversations: Iterable[Conversation], length: int) -> Rows:
    """Pack conversations, longest first, each into the fullest row that has room.

    What exceeds ``length`` is cut off.
    """
    documents = [
        (np.asarray(ids, np.uint16)[:length], np.asarray(mask, np.uint8)[:length])
        for ids, mask in conversations
    ]
    documents.sort(key=lambda document: -len(document[0]))
    rooms: list[list[int]] = [[] for _ in range(length + 1)]
    contents: list[list[int]] = []
    for index, (ids, _) in enumerate(documents):
        size = next((room for room in range(len(ids), length) if rooms[room]), length)
        if size == length:
            contents.append([])
            row = len(contents) - 1
        else:
            row = rooms[size].pop()
        contents[row].append(index)
        rooms[size - len(ids)].append(row)
    rows = Rows(
        np.zeros((len(contents), length), np.uint16),
        np.zeros((len(contents), length), np.uint16),
        np.zeros((len(contents), length), np.uint8),
    )
    for row, members in enumerate(contents):
        cursor = 0
        for index in members:
            ids, mask = documents[index]
            span = slice(cursor, cursor + len(ids))
            rows.tokens[row, span] = ids
            rows.positions[row, span] = np.arange(len(ids))
            rows.kinds[row, cursor : cursor + len(ids) - 1] = np.where(mask[1:], SAID, GIVEN)
            cursor += len(ids)
    return rows


def save_rows(path: Path, rows: Rows) -> None:
    """Write rows so that a reader sees all of the file or none."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as stream:
        np.savez(stream, tokens=rows.tokens, positions=rows.positions, kinds=rows.kinds)
    os.replace(partial, path)


def load_rows(path: Path) -> Rows:
    """Read what `save_rows` wrote."""
    with np.load(path) as arrays:
        return Rows(arrays["tokens"], arrays["positions"], arrays["kinds"])


@dataclass(frozen=True, slots=True)
class DataPlan:
    """What processes that make rows are told.

    Attributes:
        source: ``module:function`` of a `Source`.
        folder: of the shards; those already there are not made again.
        seed: of the data.
        length: of a row.
        count: conversations of a shard.
        capacity: rows of all shards after which it is enough.
    """

    source: str
    folder: Path
    seed: int
    length: int
    count: int
    capacity: int

    def start(self, index: int, stride: int) -> subprocess.Popen[bytes]:
        """Start the process that makes every ``stride``-th shard from ``index`` on.

        It is a program of its own, so that it loads no tensor library; it ends with its parent.
        """
        plan = asdict(self) | {"folder": str(self.folder)}
        command = [sys.executable, "-m", "tools.demo_model.packing", json.dumps(plan)]
        return subprocess.Popen([*command, str(index), str(stride)])


def produce(plan: DataPlan, shard: int, stride: int) -> None:
    """Write shards ``shard``, ``shard + stride``, ... until there is enough."""
    module, _, function = plan.source.partition(":")
    source: Source = getattr(importlib.import_module(module), function)
    num_rows, parent = 0, os.getppid()
    while shard * num_rows <= plan.capacity and os.getppid() == parent:
        path = plan.folder / f"rows-{shard:05d}.npz"
        if not path.exists():
            began = time.perf_counter()
            rows = pack(source(plan.seed, shard * plan.count, plan.count), plan.length)
            save_rows(path, rows)
            num_rows = len(rows.tokens)
            elapsed = time.perf_counter() - began
            if shard == 0:
                print(f"data: {rows.tokens.size / elapsed:.0f} tokens/s a process", flush=True)
        shard += stride


def main(arguments: list[str]) -> int:
    """Make rows as a plan in JSON, an index and a stride say."""
    values = json.loads(arguments[0])
    plan = DataPlan(**{**values, "folder": Path(values["folder"])})
    # The data makes way for the trainer, and one process uses one core.
    os.nice(10)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    produce(plan, int(arguments[1]), int(arguments[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
