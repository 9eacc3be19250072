"""``ninfer tokenize``: token ids of a text or of a conversation. Opens no device."""

import argparse
import json

from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.model_argument import add_model_argument, settle_model
from ninfer.cli.options import refuse_idle
from ninfer.cli.report_format import add_format_option
from ninfer.cli.request_input import read_json
from ninfer.cli.text_input import read_text, text_argument
from ninfer.frontend.conversation import Conversation
from ninfer.frontend.frontend import PromptOptions
from ninfer.frontend.message_json import parse_messages, parse_tools
from ninfer.inspection import open_frontend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_argument(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="TEXT", type=text_argument, help="a text, as it is")
    source.add_argument("--messages", metavar="FILE", help="JSON list of chat messages")
    parser.add_argument("--tools", metavar="FILE", help="JSON list of tool definitions")
    parser.add_argument(
        "--parse-special", action="store_true", help="read control tokens in --text"
    )
    parser.add_argument("--no-thinking", action="store_true", help="render without thinking")
    parser.add_argument(
        "--chat-template", metavar="FILE", help="use this chat template instead of the model's"
    )
    add_format_option(parser)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Print the ids; the text form adds the piece of each."""
    if options.text is None:
        refuse_idle(options, ["parse_special"], "goes with --text")
    else:
        refuse_idle(options, ["tools", "chat_template"], "goes with --messages")
    template = None if options.chat_template is None else read_text(options.chat_template)
    settle_model(options, console)
    frontend = open_frontend(options.model, chat_template=template)
    tokenizer = frontend.tokenizer
    if options.text is not None:
        token_ids = tokenizer.encode(options.text, parse_special=options.parse_special)
        prompt = options.text
    else:
        tools = None if options.tools is None else read_json(options.tools)
        conversation = Conversation(parse_messages(read_json(options.messages)), parse_tools(tools))
        thinking = False if options.no_thinking else None
        prepared = frontend.prepare(conversation, PromptOptions(enable_thinking=thinking))
        token_ids, prompt = list(prepared.prompt.token_ids), prepared.text or ""
    if options.format == "json":
        document = {"tokens": list(token_ids), "count": len(token_ids), "prompt": prompt}
        print(json.dumps(document, ensure_ascii=False))
    else:
        for token_id in token_ids:
            piece = tokenizer.piece(token_id)
            print(f"{token_id:8}  {piece.decode('utf-8', 'replace')!r}")
    return ExitCode.DONE
