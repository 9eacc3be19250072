"""Trains the demo model's tokenizer and writes the files a checkpoint of the family has.

Byte-level BPE with the family's split pattern (every digit alone, NFC) and the family's added
tokens behind it, in the family's order. Capitals are kept apart in the training text, so that a
word in capitals is spelled letter by letter, and so are Chinese characters, which no space parts.
The same data give the same bytes; the shipped tokenizer is older than some of the data, so a folder
that has a tokenizer is left alone. The chat template is copied from the shipped one. Source: the
model contract, section 3.8.

    python -m tools.demo_model.tokenizer_files --output DIR
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tools.demo_model.data.encoding import TOKENIZER_FOLDER
from tools.demo_model.data.rendering import render
from tools.demo_model.data.stream import samples

NUM_ENTRIES: Final = 8144  # and 33 added tokens: below 8192 rows, a multiple of 128
NUM_CONVERSATIONS: Final = 100_000
SEED: Final = 0
NAMES: Final = (
    "chat_template.jinja",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""Files of a tokenizer."""

_MIN_FREQUENCY: Final = 12
_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_APART: Final = re.compile(r"(?<=[A-Z])(?=[A-Z])|(?<=[\u3000-\u9fff])(?=[\u3000-\u9fff])")
_SPECIAL: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_ORDINARY: Final = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_ONLY_IN_CONFIG: Final = (
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
_CONTROLS: Final = re.compile("|".join(map(re.escape, (*_SPECIAL, *_ORDINARY))))


def training_text(seed: int, count: int) -> Iterator[str]:
    """Conversations, cut at control tokens and between characters that are kept apart."""
    for conversation in samples(seed, 0, count):
        text = "".join(piece for piece, _ in render(conversation))
        for part in _CONTROLS.split(text):
            yield from _APART.split(part)


def train(seed: int, count: int, num_entries: int) -> dict[str, Any]:
    """Train, and return the content of ``tokenizer.json``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_entries,
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(seed, count), trainer)
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    first = len(content["model"]["vocab"])
    listed = [(text, True) for text in _SPECIAL] + [(text, False) for text in _ORDINARY]
    content["added_tokens"] = [
        {"id": first + place, "content": text, **_flags(is_special)}
        for place, (text, is_special) in enumerate(listed)
    ]
    return content


def _flags(is_special: bool) -> dict[str, bool]:
    unset = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {**unset, "special": is_special}


def files(content: dict[str, Any], chat_template: str) -> dict[str, str]:
    """Texts of all tokenizer files by name, for the content of ``tokenizer.json``."""
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    decoder = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in content["added_tokens"]
    }
    for text in _ONLY_IN_CONFIG:
        place = min(ids.values()) + len(decoder)
        decoder[str(place)] = {"content": text, **_flags(True)}
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    generation = {
        "bos_token_id": ids["<|endoftext|>"],
        "do_sample": False,  # what it knows, it knows best without chance
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }
    return {
        "chat_template.jinja": chat_template,
        "tokenizer.json": _dumped(content),
        "tokenizer_config.json": _dumped(config),
        "generation_config.json": _dumped(generation),
    }


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Train and write the files into a folder that has none of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.tokenizer_files")
    parser.add_argument("--output", type=Path, required=True, help="folder without a tokenizer")
    parser.add_argument("--conversations", type=int, default=NUM_CONVERSATIONS)
    parser.add_argument("--entries", type=int, default=NUM_ENTRIES)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(arguments)
    template = (TOKENIZER_FOLDER / "chat_template.jinja").read_text(encoding="utf-8")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in options.output.iterdir() if path.name in NAMES)
    except OSError as error:
        parser.error(f"--output {options.output}: {error.strerror}")
    if there:
        parser.error(f"{options.output} has {', '.join(there)}, which belong to trained weights")
    content = train(options.seed, options.conversations, options.entries)
    for name, text in files(content, template).items():
        (options.output / name).write_text(text, encoding="utf-8")
    print(f"{len(content['model']['vocab'])} entries", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
