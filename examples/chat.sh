#!/bin/sh
# Ask a running server one question; the answer is streamed.
# Usage: chat.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8000}

curl --silent --show-error --fail-with-body --no-buffer "$url/v1/chat/completions" \
    --header 'Content-Type: application/json' \
    --data '{
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": 200,
        "stream": true
    }'
