"""The manifest: the description of a dataset in one small file, whose hash is the version.

The hash covers the canonical JSON of every field, so nothing in it may depend on where or when the
dataset was made. Data that grows with the tokens (block checksums, document starts) lives in
sidecar files that the manifest names by hash: about 350 bytes a shard, some 5 MB for a trillion
tokens. Optional fields at their defaults (masks, rows, packing) are left out of the JSON, so that
a new optional field does not change existing versions.
"""

import json
import re
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TypeAlias

from blake3 import blake3

from penstock.catalog.shapes import LARGEST
from penstock.data.store.objects import Store
from penstock.errors import NotReached, PenstockError
from penstock.untrusted import INDEX_BYTES, parse_json, preview, read_bounded

FORMAT = 1
BLOCK_BYTES = 1 << 20
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SHARDS = "shards"
PAIRS_STAGE, ANSWERS_CUT = "pairs", "answers cut"  # in the counts of a dataset of pairs
BUILD_RECORD = "build.json"  # how it was built; not part of the version

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_HASH = re.compile(r"[0-9a-f]{64}")

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


def dtype_for(vocab: int) -> str:
    """Return the stored type of a token id as a numpy dtype: little-endian on every machine."""
    return "<u2" if vocab <= 1 << 16 else "<u4"


@dataclass(frozen=True)
class Shard:
    """One token file and its sidecars. Each is stored under the BLAKE3 of its own content."""

    blake3: str  # of the tokens: SHARDS/<blake3>.bin
    tokens: int
    bytes: int
    sums: str  # BLAKE3 of the sidecar with an xxh3_64 for each block
    docs: str  # BLAKE3 of the sidecar with the offset (tokens) of each document that starts here
    documents: int
    # BLAKE3 of the sidecar with one bit per token (np.packbits): 1 if it is a target of the loss.
    mask: str = ""
    # BLAKE3 of the sidecar with one JSON line per document that starts here, zstd-compressed.
    rows: str = ""
    rows_bytes: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.bytes // BLOCK_BYTES)

    @property
    def mask_bytes(self) -> int:
        return -(-self.tokens // 8)

    def files(self) -> dict[str, tuple[str, int]]:
        """Return the shard's files: path inside the dataset → (BLAKE3, bytes)."""
        files = {
            f"{SHARDS}/{self.blake3}.bin": (self.blake3, self.bytes),
            f"{SHARDS}/{self.sums}.sums": (self.sums, 8 * self.blocks),
            f"{SHARDS}/{self.docs}.docs": (self.docs, 8 * self.documents),
        }
        if self.mask:
            files[f"{SHARDS}/{self.mask}.mask"] = (self.mask, self.mask_bytes)
        if self.rows:
            files[f"{SHARDS}/{self.rows}.rows"] = (self.rows, self.rows_bytes)
        return files


@dataclass(frozen=True)
class Manifest:
    """All that decides the version of a dataset."""

    name: str
    format: int
    dtype: str
    vocab: int
    tokens: int
    documents: int
    tokenizer: str  # BLAKE3 of tokenizer.json
    recipe: dict[str, Json]  # how it was made
    lineage: dict[str, Json]  # what it was made from
    counts: dict[str, dict[str, int]]  # stage → reason → documents
    shards: tuple[Shard, ...]
    packed: int = 0  # sequence length that documents were packed for, tokens; 0: not packed
    pairs: bool = False  # sequences come in twos: a prompt with its chosen, and its rejected answer
    parents: tuple[str, ...] = ()  # name@version of datasets that this one was made from

    @property
    def version(self) -> str:
        canonical = json.dumps(self._fields(), sort_keys=True, separators=(",", ":"))
        return blake3(canonical.encode()).hexdigest()[:12]

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def packed_sample(self) -> int:
        """Tokens of a sample of a packed dataset: a sequence, or both of a pair."""
        return self.packed * (2 if self.pairs else 1)

    def to_json(self) -> str:
        """Return the stored form. It holds its own version, so that a change can be detected."""
        return json.dumps({"version": self.version, **self._fields()}, indent=1) + "\n"

    def _fields(self) -> dict[str, object]:
        stored = _without_empty(self, asdict(self))
        stored["shards"] = [_without_empty(shard, asdict(shard)) for shard in self.shards]
        return stored


def _without_empty(owner: "Manifest | Shard", stored: dict[str, object]) -> dict[str, object]:
    """Return the stored fields without the optional ones that have their defaults."""
    optional = {
        field.name: field.default for field in fields(owner) if field.default is not MISSING
    }
    return {
        name: value
        for name, value in stored.items()
        if name not in optional or getattr(owner, name) != optional[name]
    }


def fetch_manifest(url: str, patience_s: float) -> bytes | None:
    """Return the manifest at a URL; None if there is none. Refuse a URL that cannot be reached.

    Some servers answer with a web page instead of an error; that counts as no manifest.
    """
    try:
        content = Store(url.rstrip("/"), patience_s).get(MANIFEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotReached(f"{url} cannot be reached: {error.strerror or error}.") from None
    return content if content.lstrip()[:1] == b"{" else None


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a local dataset."""
    path = folder / MANIFEST
    again = f"Delete {folder} and build or copy the dataset again."
    try:
        stored = parse_json(read_bounded(path, INDEX_BYTES))
    except FileNotFoundError:
        raise PenstockError(f"{folder} is not a dataset: it has no {MANIFEST}.") from None
    except ValueError as error:
        raise PenstockError(f"{path} is damaged: it is not JSON ({error}). {again}") from None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        found = stored.get("format") if isinstance(stored, dict) else type(stored).__name__
        raise PenstockError(
            f"{path} has format {preview(found)}; this version of Penstock reads format {FORMAT}. "
            "Use the Penstock that built it, or build the dataset again."
        )
    version = stored.pop("version", None)
    try:
        shards = tuple(Shard(**shard) for shard in stored.pop("shards"))
        parents = tuple(stored.pop("parents", ()))
        manifest = Manifest(**stored, shards=shards, parents=parents)
        found_version = manifest.version
    except (KeyError, TypeError, AttributeError) as error:
        raise PenstockError(f"{path} is damaged: {str(error)[:200]}. {again}") from None
    except RecursionError:
        raise PenstockError(f"{path} is damaged: it is nested too deeply. {again}") from None
    if found_version != version:
        raise PenstockError(
            f"{path} was changed after it was written: it says version {str(version)[:20]}, "
            f"its content is version {found_version}. {again}"
        )
    if problem := _impossible(manifest):
        raise PenstockError(f"{path} cannot be true: {problem}. Do not use this dataset.")
    return manifest


def _impossible(manifest: Manifest) -> str:
    """Return the first value that no real dataset can have; empty if there is none.

    The version only detects accidents: an attacker can write a manifest with a matching one. File
    names must be hashes, so that none leads out of the dataset.
    """
    if not isinstance(manifest.name, str) or not NAME.fullmatch(manifest.name):
        return f"its name is {preview(manifest.name)}"
    if not _whole(manifest.vocab, 1, LARGEST["vocab"]):
        return f"its vocabulary has {preview(manifest.vocab)} tokens"
    if manifest.dtype != dtype_for(manifest.vocab):
        return f"tokens of type {preview(manifest.dtype)} for {manifest.vocab} of them"
    if not isinstance(manifest.tokenizer, str) or not _HASH.fullmatch(manifest.tokenizer):
        return f"its tokenizer is {preview(manifest.tokenizer)}"
    for name in ("recipe", "lineage", "counts"):
        if not isinstance(getattr(manifest, name), dict):
            return f"{name} is {preview(getattr(manifest, name))}"
    if not all(isinstance(parent, str) for parent in manifest.parents):
        return "its parents have no names"
    if not _whole(manifest.packed) or not _whole(manifest.documents):
        return "a count is not a whole number"
    if type(manifest.pairs) is not bool or (manifest.pairs and not manifest.packed):
        return f"pairs = {preview(manifest.pairs)} with packed = {manifest.packed}"
    itemsize = 2 if manifest.dtype == "<u2" else 4
    for number, shard in enumerate(manifest.shards):
        if problem := _impossible_shard(shard, itemsize):
            return f"shard {number}: {problem}"
    tokens = sum(shard.tokens for shard in manifest.shards)
    if manifest.tokens != tokens:
        return f"{preview(manifest.tokens)} tokens, but {tokens} in its shards"
    return ""


def _impossible_shard(shard: Shard, itemsize: int) -> str:
    for name in ("blake3", "sums", "docs", "mask", "rows"):
        digest = getattr(shard, name)
        optional = name in ("mask", "rows") and digest == ""
        if not optional and not (isinstance(digest, str) and _HASH.fullmatch(digest)):
            return f"{name} = {preview(digest)} is not a hash"
    if not _whole(shard.tokens, 1) or not _whole(shard.documents, 0, shard.tokens):
        return f"{preview(shard.tokens)} tokens in {preview(shard.documents)} documents"
    if shard.bytes != shard.tokens * itemsize or type(shard.bytes) is not int:
        return f"{preview(shard.bytes)} bytes for {shard.tokens} tokens"
    if not _whole(shard.rows_bytes):
        return f"rows_bytes = {preview(shard.rows_bytes)}"
    return ""


def _whole(value: object, least: int = 0, most: int = 1 << 50) -> bool:
    return type(value) is int and least <= value <= most
