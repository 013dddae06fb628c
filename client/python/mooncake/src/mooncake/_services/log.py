"""The log of a service, on standard error."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque

_STDERR = 2
_MOST_LINES = 2000
_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"


def start(level: int = logging.INFO) -> None:
    """Sends the log of this process to standard error, in upstream's format."""
    handler = PatientHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class PatientHandler(logging.Handler):
    """Writes lines from a thread of its own, and drops and counts those that come while nobody reads.

    Standard error may be a pipe that is never read: a test harness starts services like that. A write blocks once the pipe is full,
    and a service that wrote from its own threads would stop.
    """

    def __init__(self, descriptor: int = _STDERR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._changed = threading.Condition()
        self._writing = False
        threading.Thread(target=self._write, daemon=True, name="mooncake-log").start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode(errors="replace")
        except Exception:
            # A message that does not fit its arguments must not end the thread that logs it.
            line = f"log line of {record.pathname}:{record.lineno} can't be formatted: {record.msg!r}\n".encode(errors="replace")
        with self._changed:
            if len(self._lines) >= _MOST_LINES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def drain(self, seconds: float) -> None:
        """Waits until all lines are written, at most for so long: before the process ends."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, max(deadline - time.monotonic(), 0.0))

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._lines))
                lines, self._lines = self._lines, deque()
                dropped, self._dropped = self._dropped, 0
                self._writing = True
            for line in lines:
                if not self._put(line):
                    dropped += 1
            if dropped:
                self._put(f"{dropped} lines of the log were dropped: nobody read them in time\n".encode())

    def _put(self, line: bytes) -> bool:
        # A signal's end is no end of the write: `os.write` tries again by itself.
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            # The reader is gone, or the pipe does not block and is full.
            return False
        return True


def drain(seconds: float = 0.5) -> None:
    """Waits until the lines of this process are written, at most for so long."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PatientHandler):
            handler.drain(seconds)
