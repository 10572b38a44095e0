"""Stop signals: the first one asks a run to stop, the second one ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def on_stop_signal(request_stop: Callable[[int], None]) -> Iterator[None]:
    """Call `request_stop(number)` on the first stop signal; raise KeyboardInterrupt on the second.

    Python runs signal handlers in the main thread only; in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def handle(number: int, frame: object) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        request_stop(number)

    # `nohup` ignores the hang-up; without it a lost terminal is a reason to save and stop.
    handled = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
