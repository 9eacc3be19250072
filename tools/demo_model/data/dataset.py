"""A training set on disk: tokens, mask and document starts, made by several processes.

    NAME.tokens   uint16, one document after the other
    NAME.mask     uint8, 1 where the model has to predict this token
    NAME.starts   uint64, index of each document's first token

The content depends on seed and number of tokens alone, not on the number of processes: they make
blocks of equal numbers of conversations, which are written in order and cut off at the end.
"""

import array
import contextlib
import hashlib
import multiprocessing
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tools.demo_model.data.stream import conversations

_BLOCK: Final = 2048

Block = tuple[bytes, bytes, list[int]]


def make_block(seed: int, index: int, size: int = _BLOCK) -> Block:
    """Make one block of conversations.

    Returns:
        Tokens as little-endian uint16, the mask, and the length of each document in tokens.
    """
    tokens = array.array("H")
    mask = bytearray()
    lengths = []
    for token_ids, learned in conversations(seed, index * size, size):
        tokens.extend(token_ids)
        mask += bytes(learned)
        lengths.append(len(token_ids))
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes(), bytes(mask), lengths


def write(path: Path, seed: int, tokens: int, *, workers: int | None = None) -> int:
    """Write a training set of exactly ``tokens`` tokens.

    Args:
        path: name without suffix; three files are made beside one another.
        seed: of the stream.
        tokens: how many; the last document may be cut.
        workers: processes; None is one for each processor.

    Returns:
        Number of documents.
    """
    written = documents = 0
    with contextlib.ExitStack() as files:
        outputs = [
            files.enter_context(path.with_name(f"{path.name}.{part}").open("wb"))
            for part in ("tokens", "mask", "starts")
        ]
        blocks = files.enter_context(contextlib.closing(_blocks(seed, workers)))
        while written < tokens:
            count, begun = _append(outputs, next(blocks), written, tokens)
            written += count
            documents += begun
    return documents


def _append(outputs: Sequence[BinaryIO], block: Block, written: int, limit: int) -> tuple[int, int]:
    packed, mask, lengths = block
    count = min(len(mask), limit - written)
    outputs[0].write(packed[: 2 * count])
    outputs[1].write(mask[:count])
    starts = array.array("Q")
    place = 0
    for length in lengths:
        if place >= count:
            break
        starts.append(written + place)
        place += length
    if sys.byteorder == "big":
        starts.byteswap()
    outputs[2].write(starts.tobytes())
    return count, len(starts)


def _blocks(seed: int, workers: int | None) -> Generator[Block]:
    """Blocks in order; as many are on their way as there are processes, and a few more."""
    count = workers or os.cpu_count() or 1
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each process
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        waiting = [pool.apply_async(make_block, (seed, index)) for index in range(2 * count)]
        index = len(waiting)
        while True:
            yield waiting.pop(0).get()
            waiting.append(pool.apply_async(make_block, (seed, index)))
            index += 1


def digest(seed: int, conversations_count: int) -> str:
    """SHA-256 over tokens and masks of the first conversations of a seed."""
    summed = hashlib.sha256()
    for token_ids, mask in conversations(seed, 0, conversations_count):
        packed = array.array("H", token_ids)
        if sys.byteorder == "big":
            packed.byteswap()
        summed.update(packed.tobytes())
        summed.update(bytes(mask))
    return summed.hexdigest()
