"""``ninfer score``: log-probabilities of texts, or of token lists."""

import argparse
import json
from collections.abc import Iterator, Sequence

from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode, UsageError
from ninfer.cli.model_argument import add_model_argument, settle_model
from ninfer.cli.options import add_engine_options, engine_config, integer
from ninfer.cli.report_format import add_format_option
from ninfer.cli.request_input import read_token_list
from ninfer.cli.slow_start import starting
from ninfer.cli.text_input import read_text
from ninfer.config import Purpose
from ninfer.errors import RequestError
from ninfer.runtime import Scorer, TextScore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_argument(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", metavar="FILE", help="text; - is standard input")
    source.add_argument(
        "--tokens",
        metavar="FILE",
        help='JSON lines {"tokens": [...]}; one line comes back for each',
    )
    parser.add_argument(
        "--window", type=integer, metavar="N", help="tokens of one window (default: the context)"
    )
    parser.add_argument(
        "--stride", type=integer, metavar="N", help="new tokens of a window (default: half)"
    )
    add_format_option(parser)
    add_engine_options(parser, max_context=4096, has_template=False)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Score everything the source holds."""
    lists = None if options.tokens is None else list(_token_lists(options.tokens))
    text = None if options.file is None else read_text(options.file)
    settle_model(options, console)
    with starting(console):
        scorer = Scorer(
            options.model,
            config=engine_config(options, purpose=Purpose.CAUSAL_SCORING),
            progress=console.loading,
            compiling=console.compiling,
        )
    with scorer:
        if lists is not None:
            for tokens in lists:
                score = _score(scorer, tokens, options, console)
                line = {"logprobs": score.logprobs, "argmax": score.argmax}
                print(json.dumps(line), flush=True)
            return ExitCode.DONE
        tokens = list(scorer.frontend.prepare_raw(text or "").prompt.token_ids)
        score = _score(scorer, tokens, options, console)
    if options.format == "json":
        document = {
            "tokens": tokens,
            "logprobs": score.logprobs,
            "argmax": score.argmax,
            "num_scored": score.num_scored,
            "mean_nll": score.mean_nll if score.num_scored else None,
            "perplexity": score.perplexity if score.num_scored else None,
        }
        print(json.dumps(document))
    else:
        print(f"tokens      {len(tokens)}")
        print(f"scored      {score.num_scored}")
        if score.num_scored:
            print(f"mean nll    {score.mean_nll:.6f}")
            print(f"perplexity  {score.perplexity:.4f}")
    return ExitCode.DONE


def _score(
    scorer: Scorer, tokens: Sequence[int], options: argparse.Namespace, console: Console
) -> TextScore:
    def report(done: int, total: int) -> None:
        console.progress("scoring", done, total, "tokens")

    try:
        return scorer.score(tokens, window=options.window, stride=options.stride, progress=report)
    except RequestError as error:
        if error.field not in ("window", "stride"):
            raise
        # No part of a request: the option is wrong, like one that the parser refuses.
        raise UsageError(f"--{error}") from error
    finally:
        console.yield_to_output()


def _token_lists(path: str) -> Iterator[list[int]]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: not JSON: {error}") from error
        tokens = document.get("tokens") if isinstance(document, dict) else None
        yield read_token_list(tokens, f"{path}, line {number}: tokens")
