"""The log of the extension module, passed on to ``logging``."""

from __future__ import annotations

import atexit
import logging
import os
import threading

from mc import _native

_lock = threading.Lock()
_thread: threading.Thread | None = None


def start() -> None:
    """Starts the thread that passes lines on, once a process. The levels of the loggers below ``mc`` then decide about each line."""
    global _thread
    with _lock:
        if _thread is not None:
            return
        # Debug lines cost time, so they are collected only if somebody wanted them at the start.
        _native.start_logs(min(logging.getLogger("mc").getEffectiveLevel(), logging.INFO))
        _thread = threading.Thread(target=_pass_on, name="mc-log", daemon=True)
        _thread.start()


def _pass_on() -> None:
    while not _stopping.is_set():
        try:
            _hand_over(1.0)
        except Exception:
            # A filter or a handler of the program failed. Its next line may not.
            logging.lastResort.handleError(logging.makeLogRecord({"name": "mc"}))  # type: ignore[union-attr]


def _hand_over(timeout: float) -> None:
    lines, lost = _native.next_logs(timeout)
    for level, target, message in lines:
        logging.getLogger(target.replace("::", ".").replace("mc_", "mc.", 1)).log(level, "%s", message)
    if lost:
        logging.getLogger("mc").warning("%d lines of the log were lost: they came faster than they were handled", lost)


_stopping = threading.Event()


def _stop() -> None:
    # A thread that waits in native code when the interpreter ends would be torn down in the middle of it.
    if _thread is not None:
        _stopping.set()
        _native.stop_logs()
        _thread.join(timeout=1.0)
        _hand_over(0.0)


def _forget() -> None:
    global _lock, _thread, _stopping
    _lock, _thread, _stopping = threading.Lock(), None, threading.Event()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
