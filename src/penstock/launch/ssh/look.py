"""A first look at a host, before anything of Penstock is known to be there.

The text of this file is sent to `PYTHON - FOLDER` on the host, so it uses the standard library of
any Python 3 and nothing else. It prints one JSON object.
"""

import json
import os
import platform
import shutil
import socket
import sys


def look(folder):
    """Return what this host has: versions, and the folder that the run will work in."""
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.system(),
        "penstock": _penstock(),
        "torch": _version("torch"),
        "cryptography": _version("cryptography"),
        **_folder(os.path.expanduser(folder)),
    }


def _penstock():
    try:
        import penstock

        return penstock.__version__
    except Exception as error:
        return None if isinstance(error, ImportError) else "broken: " + repr(error)


def _version(name):
    try:
        from importlib.metadata import version

        return version(name)
    except Exception:
        return None


def _folder(folder):
    """Return whether the folder can be written, and the space below it; it need not exist yet."""
    there = os.path.abspath(folder)
    while not os.path.isdir(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    return {
        "folder": folder,
        "nearest": there,
        "writable": os.access(there, os.W_OK | os.X_OK),
        "free_bytes": shutil.disk_usage(there).free,
    }


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1])))
