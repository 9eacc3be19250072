"""Count the tokens of a question, then stream the answer, with the official ``anthropic`` package.

Usage: python examples/chat_anthropic.py [URL]
"""

import sys
from typing import Any

from anthropic import Anthropic

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
QUESTION: Any = [{"role": "user", "content": "Why is the sky blue?"}]


def main() -> None:
    """Count, then ask."""
    with Anthropic(base_url=URL, api_key="unused") as client:
        counted = client.messages.count_tokens(model="default", messages=QUESTION)
        print(f"{counted.input_tokens} tokens")
        with client.messages.stream(model="default", messages=QUESTION, max_tokens=200) as stream:
            for text in stream.text_stream:
                print(text, end="", flush=True)
            final = stream.get_final_message()
        print(f"\nstop reason: {final.stop_reason}")


if __name__ == "__main__":
    main()
