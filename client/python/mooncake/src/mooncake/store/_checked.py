"""Loaded before the rest of the store: refuses a directory that is shared with an upstream wheel."""

from __future__ import annotations

from pathlib import Path

from .._coexistence import refuse_shared_directory

refuse_shared_directory(Path(__file__).parent.parent)
