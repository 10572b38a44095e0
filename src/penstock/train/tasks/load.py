"""Tasks of the harness by name: from a folder of the user's, or from the harness's own.

The harness skips a file that it cannot parse, looks for data files in the current folder only, and
raises whatever its libraries raise. Here each of these is one message.
"""

import difflib
import logging
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.found import expanded_path

EXTRA = (
    "pip install 'penstock[evaluate]' (in a clone, pip install -c constraints.txt '.[evaluate]')"
)
SEED = 1234  # of the examples in front of a question: the harness's own
SHOWN = 12  # tasks that are named when one is unknown


def refuse_missing_harness(field: str) -> None:
    """Refuse tasks on a machine without the harness; `field` names who wants it."""
    try:
        import lm_eval.evaluator  # noqa: F401
    except ImportError as error:
        raise PenstockError(
            f"{field}: tasks run through lm-evaluation-harness, which cannot be imported "
            f"({error}); {EXTRA}"
        ) from None


def load_tasks(names: Sequence[str], folder: str | None, field: str = "--tasks") -> dict[str, Any]:
    """Load tasks with their data, as the harness's evaluation takes them."""
    with same_random_numbers():
        return _load(names, folder, field)


def _load(names: Sequence[str], folder: str | None, field: str) -> dict[str, Any]:
    refuse_missing_harness(field)
    quiet()
    if not names:
        raise PenstockError(f"{field}: no task is named; name one, or several with commas")
    where = _task_folder(folder, field)
    manager = _manager(names, where, field)
    try:
        loaded = manager.load(list(dict.fromkeys(names)))
    except PenstockError:
        raise
    except Exception as error:  # of YAML, Jinja, datasets, the hub, or the task's own code
        raise PenstockError(f"{field} {', '.join(names)}: {_why(error)}") from error
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
    return loaded


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Give the harness numbers of its own, and leave the process's generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    torch: Any = sys.modules.get("torch")  # a check before a launch does without
    cpu = torch.get_rng_state() if torch else None
    cuda = torch.cuda.get_rng_state() if torch and torch.cuda.is_initialized() else None
    random.seed(0)
    np.random.seed(SEED)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if cpu is not None:
            torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)


def quiet() -> None:
    """Keep the harness and its libraries from printing beside our own output."""
    for name in ("lm_eval", "datasets", "evaluate", "huggingface_hub", "httpx", "filelock"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "")
    import datasets

    datasets.disable_progress_bars()


def _task_folder(folder: str | None, field: str) -> Path | None:
    if folder is None:
        return None
    told = "evaluate.tasks_dir" if field.startswith("evaluate") else "--tasks-dir"
    path = expanded_path(folder)
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "no such folder"
        raise PenstockError(f"{told} {folder}: {what}; name a folder with tasks in YAML files")
    files = sorted(path.glob("**/*.yaml"))
    if not files:
        raise PenstockError(f"{told} {folder}: there is no .yaml file in it, which a task is")
    for file in files:
        _refuse_unparsed(file)
    return path


def _refuse_unparsed(file: Path) -> None:
    """Refuse a task file that cannot be parsed, with its line."""
    import yaml
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        load_yaml(file, resolve_func=False, recursive=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        raise PenstockError(
            f"{file}{line}: not a task in YAML: {error.problem or error.context}; fix that line"
        ) from None
    except (ValueError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise PenstockError(f"{file}: not a task in YAML: {_first_line(error)}") from None
    except OSError as error:
        raise PenstockError(f"{file}: cannot be read: {error.strerror or error}") from None


def _manager(names: Sequence[str], folder: Path | None, field: str) -> Any:
    """Return an index that has all of the names; the harness's own is large, and read if needed."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folder, include_defaults=False)
    if any(name not in manager.all_tasks for name in names):
        manager._index = {**_harness_index(), **manager.task_index}  # the user's own come first
        manager._all_tasks = sorted(manager._index)
    for name in names:
        if name not in manager.all_tasks:
            raise PenstockError(_unknown(name, manager, folder, field))
    manager._factory = _locating_factory()
    return manager


@cache
def _harness_index() -> dict[str, Any]:
    """Return the tasks that come with the harness: some 14,000, which take seconds to read."""
    from lm_eval.tasks import TaskManager

    found: dict[str, Any] = TaskManager().task_index
    return found


def _unknown(name: str, manager: Any, folder: Path | None, field: str) -> str:
    own = [] if folder is None else [
        n for n, e in manager.task_index.items()
        if e.yaml_path is not None and folder.resolve() in Path(e.yaml_path).resolve().parents
    ]  # fmt: skip
    close = difflib.get_close_matches(name, own) or difflib.get_close_matches(
        name, manager.all_tasks
    )
    words = [f"{field}: there is no task '{name}'."]
    if close:
        words.append(f"Did you mean {' or '.join(repr(one) for one in close)}?")
    if own:
        words.append(f"{folder} has {', '.join(sorted(own)[:SHOWN])}.")
    return " ".join(words)


def _locating_factory() -> Any:
    """Return a factory that also looks for a task's data files beside its YAML file."""
    from lm_eval.tasks._factory import TaskFactory

    class LocatingFactory(TaskFactory):
        def _load_full_config(self, entry: Any, overrides: dict[str, Any] | None) -> dict[str, Any]:
            config: dict[str, Any] = super()._load_full_config(entry, overrides)
            options = config.get("dataset_kwargs")
            if entry.yaml_path is not None and isinstance(options, dict):
                beside = Path(entry.yaml_path).resolve().parent
                located = {
                    name: _located(value, beside) if name in ("data_files", "data_dir") else value
                    for name, value in options.items()
                }
                config["dataset_kwargs"] = located
            return config

    return LocatingFactory()


def _located(value: Any, beside: Path) -> Any:
    if isinstance(value, dict):
        return {name: _located(one, beside) for name, one in value.items()}
    if isinstance(value, list):
        return [_located(one, beside) for one in value]
    if isinstance(value, str) and not Path(value).exists() and (beside / value).exists():
        return str(beside / value)
    return value


def _why(error: Exception) -> str:
    """Say why tasks could not be loaded, and what to do."""
    name, text = type(error).__name__, _first_line(error)
    chain: BaseException | None = error
    while chain is not None:
        kind = type(chain).__name__
        if isinstance(chain, ConnectionError) or kind in _UNREACHED:
            return (
                f"its data is on the Hugging Face hub, which cannot be reached ({text}); run once "
                "where it can, so that the data is in the cache, or write a task with local data "
                "files (docs/evaluate.md)"
            )
        chain = chain.__cause__ or chain.__context__
    if isinstance(error, FileNotFoundError):
        return f"a data file is missing: {text}; correct data_files in the task's YAML file"
    return f"the harness cannot load it ({name}: {text})"


_UNREACHED = {
    "ConnectError", "ConnectTimeout", "OfflineModeIsEnabled", "LocalEntryNotFoundError",
    "HfHubHTTPError", "MaxRetryError", "ProxyError", "ReadTimeout",
}  # fmt: skip


def _first_line(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:300]
