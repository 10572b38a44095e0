"""The CUDA context of a rank, created on a thread while the rank does other things.

The driver needs a second for it and the interpreter is not needed meanwhile: a call through ctypes
gives up the interpreter's lock, which torch's own first call does not.
"""

import ctypes
import os
import threading


def open_context_early(kind: str) -> None:
    """Begin to create the context that torch will use on this rank's GPU.

    An error is left to torch, which opens the same GPU and has words for it.
    """
    if kind == "cuda":
        number = int(os.environ.get("LOCAL_RANK", "0"))
        threading.Thread(target=_retain, args=(number,), name="context", daemon=True).start()


def _retain(number: int) -> None:
    """Retain the primary context of a GPU, the one that torch uses, until the process ends."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
        return
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
