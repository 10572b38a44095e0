"""Datasets on the Hugging Face hub: their files, pinned to a commit, and the download.

The repository's card (`configs`) says which files belong to a subset or split. Without it, the
names of folders and files do. HF_ENDPOINT and HF_TOKEN are honoured; downloads are kept in the
cache.
"""

import errno
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.data.format.locate import KINDS, PACKINGS
from penstock.data.sources.files import HubSelection, SourceEntry
from penstock.errors import PenstockError, RunFailed
from penstock.extras import extra
from penstock.home import home
from penstock.private import refuse_strangers

SCHEME = "hf://datasets/"
_PREFERRED = ("parquet", "jsonl", "arrow", "text")
_NAME = re.compile(r"hf:(?://datasets/)?([A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)?)")
_NO_DATA = re.compile(
    r"(^|/)(\.|README|LICENSE|dataset_infos?\.json|state\.json|dataset_dict\.json)"
)


def list_dataset(source: str, choice: HubSelection) -> Iterator[SourceEntry]:
    """Yield the data files of `hf:org/name`: Parquet, or else JSONL, Arrow or text."""
    match = _NAME.fullmatch(source)
    if not match:
        raise PenstockError(f"{source!r} is not the name of a dataset. Write hf:org/name.")
    name = match[1]
    info = _info(source, name, choice.revision)
    sizes = {one.rfilename: (one.size, one.blob_id) for one in info.siblings or ()}
    chosen = _chosen(source, list(sizes), _configs(info), choice)
    for file in chosen:
        size, blob = sizes[file]
        yield SourceEntry(
            file.encode(), f"{SCHEME}{name}@{info.sha}/{file}", "", size or -1, blob or info.sha
        )


def download_file(path: str) -> str:
    """Download a file of a pinned repository and return its path; OSError if it is missing."""
    name, _, rest = path.removeprefix(SCHEME).partition("@")
    commit_of, _, file = rest.partition("/")
    hub = extra("huggingface_hub", "Reading from the Hugging Face hub")
    try:
        return hub.hf_hub_download(
            name,
            file,
            repo_type="dataset",
            revision=commit_of,
            cache_dir=str(_cache()),
            endpoint=_endpoint(),
        )
    except hub.errors.RemoteEntryNotFoundError as error:
        raise OSError(errno.ENOENT, f"cannot be downloaded: {_short(error)}") from None
    except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError, OSError) as error:
        # Not rejected like a damaged file: a build's result must not depend on the network.
        raise RunFailed(
            f"{path} cannot be downloaded: {_short(error)}. Fix that, then run the same command "
            "again: it continues with what is missing."
        ) from None


def commit_of(path: str) -> str:
    """Return the commit in the path of a hub file."""
    return path.removeprefix(SCHEME).partition("@")[2].partition("/")[0]


def _info(source: str, name: str, revision: str) -> Any:
    hub = extra("huggingface_hub", "Reading from the Hugging Face hub")
    api = hub.HfApi(endpoint=_endpoint())
    try:
        return api.dataset_info(name, revision=revision or None, files_metadata=True, timeout=30)
    except hub.errors.RevisionNotFoundError:
        why = f"it has no revision {revision!r}"
    except hub.errors.GatedRepoError:
        why = "its owner must grant you access first: ask on its page, then set HF_TOKEN"
    except hub.errors.RepositoryNotFoundError:
        why = "there is no such dataset, or it is private and HF_TOKEN is not set"
    except (hub.errors.HTTPError, OSError) as error:
        why = f"the hub cannot be reached or gave an error ({_short(error)})"
    raise PenstockError(f"The source {source} cannot be listed: {why}.")


def _configs(info: Any) -> list[dict[str, Any]]:
    found = getattr(info.card_data, "configs", None) if info.card_data else None
    return [one for one in found or [] if isinstance(one, dict)]


def _chosen(
    source: str, files: list[str], configs: list[dict[str, Any]], choice: HubSelection
) -> list[str]:
    data = [file for file in files if _kind(file) and not _NO_DATA.search(file)]
    if named := _by_card(data, configs, choice):
        data = named
    else:
        data = [file for file in data if _by_name(file, choice)]
    for kind in _PREFERRED:
        if of_kind := [file for file in data if _kind(file) == kind]:
            return of_kind
    wanted = ", ".join(f"{k} {v!r}" for k in ("subset", "split") if (v := getattr(choice, k)))
    found = ", ".join(sorted(files)[:8]) or "nothing"
    raise PenstockError(
        f"The source {source} has no Parquet, JSONL, Arrow or text file"
        f"{f' of {wanted}' if wanted else ''}. Found: {found}."
    )


def _by_card(data: list[str], configs: list[dict[str, Any]], choice: HubSelection) -> list[str]:
    """Return the files that the repository's card assigns to the subset and split."""
    patterns: list[str] = []
    for config in configs:
        if choice.subset and config.get("config_name") != choice.subset:
            continue
        named = config.get("data_files") or []
        for one in [named] if isinstance(named, str | dict) else named:
            split = one.get("split", "train") if isinstance(one, dict) else "train"
            path = one.get("path", []) if isinstance(one, dict) else one
            if not choice.split or split == choice.split:
                patterns += [path] if isinstance(path, str) else path
    return [file for file in data if any(fnmatchcase(file, pattern) for pattern in patterns)]


def _by_name(file: str, choice: HubSelection) -> bool:
    folders = PurePosixPath(file).parent.parts
    stem = PurePosixPath(file).name
    # data/train-00000-of-00004.parquet, en/train.jsonl, train/part-1.parquet, en.train.jsonl
    words = {*folders, *re.split(r"[-_.]", stem)}
    subset = not choice.subset or choice.subset in words or stem.startswith(f"{choice.subset}-")
    return subset and (not choice.split or choice.split in words)


def _kind(file: str) -> str:
    path = PurePosixPath(file.lower())
    suffix = path.suffix
    if suffix in PACKINGS:
        suffix = PurePosixPath(path.stem).suffix
    return KINDS.get(suffix, "")


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _cache() -> Path:
    own = os.environ.get("PENSTOCK_CACHE")
    return refuse_strangers(Path(own).expanduser() if own else home() / "cache") / "hub"


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
