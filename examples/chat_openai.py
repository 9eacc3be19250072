"""Stream an answer, then let the model call a tool, with the official ``openai`` package.

Usage: python examples/chat_openai.py [URL]
"""

import sys
from typing import Any

from openai import OpenAI

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def main() -> None:
    """Ask twice."""
    with OpenAI(base_url=f"{URL}/v1", api_key="unused") as client:
        stream = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "Why is the sky blue?"}],
            max_tokens=200,
            stream=True,
        )
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()
        reply = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "How is the weather in Oslo?"}],
            tools=[WEATHER],
            max_tokens=200,
        )
        for call in reply.choices[0].message.tool_calls or []:
            if call.type == "function":
                print(f"calls {call.function.name}({call.function.arguments})")
        print(f"finish reason: {reply.choices[0].finish_reason}")


if __name__ == "__main__":
    main()
