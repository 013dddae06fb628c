"""The examples of docs/python.md."""

from __future__ import annotations

import re
from pathlib import Path

from cluster import Cluster

GUIDE = Path(__file__).resolve().parents[3] / "docs/python.md"


def test_the_examples_of_the_guide_run(one_master: Cluster) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) > 8
    names: dict[str, object] = {"MASTERS": one_master.addresses}
    for example in examples:
        exec(compile(example, str(GUIDE), "exec"), names)
