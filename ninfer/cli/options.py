"""Option groups that several commands share, and the values made of them.

Every long option has an environment variable of the same name with the prefix ``NINFER_``; the
command line wins over it. Ranges are checked where the values are built (`EngineConfig`,
`SamplingParams`), so that the messages are the ones HTTP gives.
"""

import argparse
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ninfer.cli.exit_codes import UsageError
from ninfer.cli.text_input import text_argument
from ninfer.config import EngineConfig, KvDtype, ProposalHead, Purpose, SpeculativeBackend
from ninfer.errors import ConfigurationError, UnsupportedFeature
from ninfer.generation import SamplingParams

PREFIX = "NINFER_"


class Repeated(argparse.Action):
    """Collect the values of a repeatable option; what is given replaces the default whole."""

    def __call__(  # noqa: D102 - the interface of argparse
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        collected = getattr(namespace, self.dest)
        is_first = collected is self.default
        setattr(namespace, self.dest, [values] if is_first else [*collected, values])


def integer(text: str) -> int:
    """Parse a decimal integer; anything else is a usage error."""
    return int(text, 10)


def tokens_or_auto(text: str) -> int | None:
    """Parse a token count, or ``auto`` as None."""
    try:
        return None if text == "auto" else integer(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from error


def add_engine_options(
    parser: argparse.ArgumentParser, *, max_context: int, has_template: bool = True
) -> None:
    """Add the options that `engine_config` reads, and the chat template where one is used."""
    parser.set_defaults(default_context=max_context)
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--device", default="auto", metavar="auto|host|N", help="where to run (default: auto)"
    )
    group.add_argument(
        "--max-context",
        type=integer,
        default=None,
        metavar="N",
        help=f"longest sequence in tokens (default: {max_context}, or the model's own if less)",
    )
    group.add_argument(
        "--kv-capacity",
        type=tokens_or_auto,
        default=None,
        metavar="N|auto",
        help="tokens that the whole KV cache holds (default: auto)",
    )
    group.add_argument(
        "--kv-headroom-mib",
        type=integer,
        default=1024,
        metavar="N",
        help="MiB of the device that an automatic KV capacity leaves free (default: %(default)s)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=[kind.value for kind in KvDtype],
        default=KvDtype.AUTO.value,
        help="element type of the KV cache (default: the device's activation type)",
    )
    group.add_argument(
        "--prefill-chunk",
        type=tokens_or_auto,
        default=None,
        metavar="N|auto",
        help="tokens of one prefill chunk, a multiple of 128 (default: auto, which takes 1024 to "
        "4096 by device and memory)",
    )
    group.add_argument(
        "--spec",
        choices=[backend.value for backend in SpeculativeBackend],
        default=SpeculativeBackend.NONE.value,
        help="speculative decoding; only none is available yet (default: none)",
    )
    group.add_argument(
        "--draft-tokens",
        type=integer,
        default=0,
        metavar="N",
        help="proposals of one round; goes with --spec",
    )
    group.add_argument(
        "--draft-head",
        choices=[head.value for head in ProposalHead],
        default=ProposalHead.FULL.value,
        help="output head of the drafter; goes with --spec (default: full)",
    )
    group.add_argument(
        "--vision", action="store_true", help="load the vision tower; not available yet"
    )
    group.add_argument("--no-graphs", action="store_true", help="do not replay recorded rounds")
    group.add_argument(
        "--no-prefix-reuse", action="store_true", help="compute every prompt from its start"
    )
    group.add_argument(
        "--device-state-slots",
        type=integer,
        default=0,
        metavar="N",
        help="checkpoints kept on the device; not available yet (default: 0)",
    )
    group.add_argument(
        "--host-state-slots",
        type=integer,
        default=0,
        metavar="N",
        help="checkpoints kept in host memory; not available yet (default: 0)",
    )
    group.add_argument(
        "--host-kv-mib",
        type=integer,
        default=0,
        metavar="N",
        help="host memory for the KV of checkpoints; not available yet (default: 0)",
    )
    if has_template:
        group.add_argument(
            "--chat-template", metavar="FILE", help="use this chat template instead of the model's"
        )


def add_sampling_values(group: argparse._ArgumentGroup) -> None:
    """Add the options that are members of `SamplingParams`."""
    group.add_argument(
        "--temperature",
        type=float,
        default=None,
        metavar="T",
        help="randomness, 0..2; 0 always takes the likeliest token",
    )
    group.add_argument(
        "--top-p",
        type=float,
        default=None,
        metavar="P",
        help="keep the likeliest tokens of this total probability, 0..1",
    )
    group.add_argument(
        "--top-k",
        type=integer,
        default=None,
        metavar="K",
        help="keep the K likeliest tokens; 0 keeps all",
    )
    group.add_argument(
        "--min-p",
        type=float,
        default=None,
        metavar="P",
        help="drop tokens below P times the likeliest, 0..1",
    )
    group.add_argument(
        "--presence-penalty",
        type=float,
        default=None,
        metavar="P",
        help="against tokens that occurred, -2..2",
    )
    group.add_argument(
        "--frequency-penalty",
        type=float,
        default=None,
        metavar="P",
        help="against tokens by how often they occurred, -2..2",
    )
    group.add_argument(
        "--seed",
        type=integer,
        default=None,
        metavar="N",
        help="repeatable sampling (default: a fresh seed)",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `sampling_params` and `thinking_options` read."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-new",
        type=integer,
        default=None,
        metavar="N",
        help="output tokens (default: 8192, or what the context leaves)",
    )
    add_sampling_values(group)
    group.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    group.add_argument(
        "--stop",
        action=Repeated,
        type=text_argument,
        default=[],
        metavar="S",
        help="end before this text; repeatable",
    )
    group.add_argument("--no-thinking", action="store_true", help="answer without thinking first")
    group.add_argument(
        "--thinking-budget",
        type=integer,
        default=None,
        metavar="N",
        help="tokens the thinking may take (default: no limit)",
    )
    group.add_argument(
        "--reasoning-effort",
        type=text_argument,
        default=None,
        metavar="E",
        help="an effort the chat template knows; none switches thinking off",
    )
    group.add_argument(
        "--preserve-thinking", action="store_true", help="keep thinking of earlier turns"
    )


def add_console_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `Console` reads."""
    group = parser.add_argument_group("console")
    group.add_argument("--no-progress", action="store_true", help="no progress on standard error")
    group.add_argument("--debug", action="store_true", help="show tracebacks")
    colour = group.add_mutually_exclusive_group()
    colour.add_argument("--color", action="store_true", help="colour even without a terminal")
    colour.add_argument("--no-color", action="store_true", help="never colour")


def engine_config(
    options: argparse.Namespace,
    *,
    purpose: Purpose = Purpose.GENERATION,
    max_concurrency: int = 1,
    max_pending: int = 16,
) -> EngineConfig:
    """Build the start-up configuration.

    Raises:
        ConfigurationError: an option or a combination is illegal.
        UnsupportedFeature: speculation was asked for.
    """
    backend = SpeculativeBackend(options.spec)
    if backend is not SpeculativeBackend.NONE:
        # Before the combination is checked: no number of proposals would make it possible.
        raise UnsupportedFeature(
            f"--spec {backend.value}: speculative decoding is not available yet, in this build "
            "with any model; --spec none, the default, gives the same answers",
            field="speculative",
        )
    if options.draft_head != ProposalHead.FULL.value:
        raise ConfigurationError(
            f"--draft-head {options.draft_head} goes with --spec: nothing else drafts",
            field="proposal_head",
        )
    is_default = options.max_context is None
    context = options.default_context if is_default else options.max_context
    return EngineConfig(
        purpose=purpose,
        device=options.device,
        max_concurrency=max_concurrency,
        max_pending=max_pending,
        max_context=context,
        shrinks_context=is_default,
        kv_capacity=options.kv_capacity,
        kv_headroom_bytes=options.kv_headroom_mib << 20,
        kv_dtype=KvDtype(options.kv_dtype),
        prefill_chunk=options.prefill_chunk,
        speculative=backend,
        draft_tokens=options.draft_tokens,
        proposal_head=ProposalHead(options.draft_head),
        has_vision=options.vision,
        device_state_slots=options.device_state_slots,
        host_state_slots=options.host_state_slots,
        host_kv_bytes=options.host_kv_mib << 20,
        use_graphs=not options.no_graphs,
        has_prefix_reuse=not options.no_prefix_reuse,
    )


def sampling_params(options: argparse.Namespace, preset: SamplingParams) -> SamplingParams:
    """Lay the given options over a preset; without ``--seed`` a fresh one is drawn.

    Raises:
        RequestError: a value is out of its range.
        UsageError: a value would do nothing.
    """
    refuse_beside_greedy(options)

    def chosen(name: str) -> Any:
        value = getattr(options, name)
        return getattr(preset, name) if value is None else value

    return SamplingParams(
        temperature=0.0 if options.greedy else chosen("temperature"),
        top_p=chosen("top_p"),
        top_k=chosen("top_k"),
        min_p=chosen("min_p"),
        presence_penalty=0.0 if options.greedy else chosen("presence_penalty"),
        frequency_penalty=0.0 if options.greedy else chosen("frequency_penalty"),
        seed=secrets.randbits(63) if options.seed is None else options.seed,
    )


def apply_environment(
    parser: argparse.ArgumentParser, environment: Mapping[str, str] = os.environ
) -> None:
    """Make ``NINFER_<LONG_OPTION>`` the default of every long option of ``parser``.

    Options that exclude one another have no variable: it could not give way to its sibling.
    A variable that does not parse ends the program like a wrong option would.
    """
    read: dict[str, object] = {}
    for action in configurable(parser):
        for option in action.option_strings:
            name = PREFIX + option.removeprefix("--").replace("-", "_").upper()
            if option.startswith("--") and name in environment:
                action.default = _parsed(parser, action, name, environment[name])
                read[action.dest] = action.default
    parser.set_defaults(from_environment=read)


def refuse_idle(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Refuse options that would do nothing here; a variable may, it is there for other times.

    Args:
        options: what was parsed.
        names: members of it.
        reason: why they would do nothing; follows the name of the option.

    Raises:
        UsageError: one of them was given on the command line.
    """
    from_environment: Mapping[str, object] = getattr(options, "from_environment", {})
    for name in names:
        value = getattr(options, name)
        is_given = value is not None and value is not False and value != []  # 0 is a value
        if is_given and value != from_environment.get(name):
            raise UsageError(f"--{name.replace('_', '-')} {reason}")


def refuse_beside_greedy(options: argparse.Namespace) -> None:
    """Refuse sampling values that ``--greedy`` would override.

    Raises:
        UsageError: one of them was given on the command line.
    """
    if options.greedy:
        names = ("temperature", "presence_penalty", "frequency_penalty")
        differing = [name for name in names if getattr(options, name) != 0]
        refuse_idle(options, differing, "does nothing beside --greedy or NINFER_GREEDY")


def configurable(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options of ``parser`` that have an environment variable."""
    groups = parser._mutually_exclusive_groups
    exclusive = {id(action) for group in groups for action in group._group_actions}
    return [action for action in parser._actions if id(action) not in exclusive]


def _parsed(
    parser: argparse.ArgumentParser, action: argparse.Action, name: str, text: str
) -> object:
    if action.nargs == 0:
        if text not in ("0", "1"):
            parser.error(f"{name}: expected 0 or 1, not {text!r}")
        return text == "1"
    convert: Callable[[str], object] = action.type if callable(action.type) else str
    try:
        value = convert(text)
    except argparse.ArgumentTypeError as error:
        parser.error(f"{name}: {error}")
    except ValueError:
        parser.error(f"{name}: invalid value {text!r}")
    if action.choices is not None and value not in action.choices:
        parser.error(f"{name}: invalid choice {text!r}")
    return [value] if isinstance(action, Repeated) else value
