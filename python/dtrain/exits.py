"""How a script ends that no launcher of dtrain's has started: Python says it, and dtrain has to notice it."""
from __future__ import annotations

import atexit
import builtins
import dis
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from . import moving

_failure: str | None = None
_exit: SystemExit | None = None  # of the last sys.exit() of the main thread
_sys_exit = sys.exit
#: Frames that may have gone on without a return: of generators and coroutines.
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _note_exits() -> None:
    """sys.exit(), exit() and quit() of a script, and what it has imported from sys before: Python calls no excepthook for
    them. Of `raise SystemExit(3)` there is nothing to notice."""
    sys.exit = _note_exit
    script = vars(sys.modules["__main__"])
    script.update({name: _note_exit for name, value in script.items() if value is _sys_exit})
    for name in ("exit", "quit"):
        if hasattr(builtins, name):  # not with python -S
            setattr(builtins, name, _note_exit)


def _note_exit(code: Any = None, /) -> NoReturn:
    global _exit
    try:
        _sys_exit(code)
    except SystemExit as leave:
        if threading.current_thread() is threading.main_thread():  # another thread ends by itself
            _exit = leave
        raise


def _was_caught(leave: SystemExit) -> bool:
    """Whether the script has caught this exception, and gone on.

    Its traceback begins with the frame that has handled it last. One that has gone on was left by a return at some time;
    one that the exception has left (``raise``, ``finally``) stands at another instruction.
    """
    if leave.__traceback__ is None:
        return True  # the script has taken it away from the exception that it caught
    frame = leave.__traceback__.tb_frame
    suspends = bool(frame.f_code.co_flags & _SUSPENDS)
    if sys.version_info >= (3, 12) and (suspends or frame.f_back is not None):
        return True  # since then the traceback of one that nobody has caught begins with the outermost frame
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if suspends:
        return not instruction.startswith(("RAISE", "RERAISE"))
    return instruction.startswith("RETURN")


def _note_failure(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    global _failure
    _failure = "".join(traceback.format_exception(kind, error, trace)).rstrip() + moving.advice(error)


def watch(end: Callable[[str | None], int]) -> None:
    """From now on the end of the process calls ``end``, with the error if there is one: it returns the exit code."""
    atexit.register(_end_of_process, end)
    sys.excepthook = _note_failure
    _note_exits()


def _end_of_process(end: Callable[[str | None], int]) -> None:
    if _failure is not None or _exit is None or _exit.code in (None, 0) or _was_caught(_exit):
        code = end(_failure)
    else:
        end(f"it ended with sys.exit({_exit.code!r})")
        code = _exit.code if isinstance(_exit.code, int) else 1
    if code != 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
