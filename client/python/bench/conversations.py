"""Traces of conversations: requests with the ids of their prompts' pages, in the format of Mooncake's published traces.

One JSON object a line: `timestamp` (milliseconds since the start), `input_length` and `output_length` (tokens) and `hash_ids`, one
for each 512 tokens of the prompt. An id stands for a page and all pages before it, so equal ids are reusable pages.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from pathlib import Path
from typing import NamedTuple

PAGE_TOKENS = 512


class Request(NamedTuple):
    timestamp: float
    """Seconds since the start of the trace."""
    input_length: int
    """Tokens of the prompt. The last page may be a part of one."""
    pages: list[int]


def read(path: Path, count: int) -> list[Request]:
    """The first requests of a trace file, which may be compressed by gzip."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        loaded = (json.loads(line) for line in itertools.islice(lines, count))
        return [Request(line["timestamp"] / 1000, line["input_length"], line["hash_ids"]) for line in loaded]


def generate(conversations: int, seed: int = 1) -> list[Request]:
    """Conversations of 2 to 10 turns, the same for each seed.

    They begin within four minutes. All share the first page, a system prompt; a first question has 2 to 16 pages more, later
    ones 1 to 3, and an answer 1 or 2. The next question comes 5 to 60 s after the last one: that is the think time, with the answer.
    """
    choose = random.Random(seed)
    fresh = itertools.count(1)
    requests = []
    for _ in range(conversations):
        time, prompt = choose.uniform(0, 240), [0]
        for turn in range(choose.randint(2, 10)):
            prompt = prompt + list(itertools.islice(fresh, choose.randint(1, 3) if turn else choose.randint(2, 16)))
            requests.append(Request(time, PAGE_TOKENS * len(prompt), prompt))
            prompt = prompt + list(itertools.islice(fresh, choose.randint(1, 2)))
            time += choose.uniform(5, 60)
    return sorted(requests)
