"""The tokenizer of a run, kept in its folder: `generate` and `export` work without the dataset.

Datasets lie in a cache that people clean. A run's plan holds the hash of its tokenizer, so that a
copy which was changed is not used.
"""

from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from penstock.data.read.dataset import Dataset
from penstock.data.read.open import open_planned
from penstock.errors import PenstockError
from penstock.files import write_whole
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.run import Run
from penstock.untrusted import TOKENIZER_BYTES, read_bounded


@dataclass(frozen=True)
class RunTokenizer:
    """Tokenizer facts of a run that need no dataset."""

    content: bytes  # tokenizer.json
    vocab: int
    masked: bool  # some tokens were no targets of the loss: it was trained on conversations


def keep_tokenizer(folder: RunFolder, datasets: list[Dataset]) -> None:
    """Write the tokenizer of the datasets into the run folder, unless it is there already."""
    first = datasets[0]  # the parts of a mixture share it
    if not isinstance(_kept(folder.tokenizer, first.manifest.tokenizer), bytes):
        write_whole(folder.tokenizer, first.tokenizer_json())


def read_tokenizer(run: Run, folder: RunFolder) -> RunTokenizer:
    """Return the tokenizer that the folder of a run keeps, or that of its dataset.

    Runs of earlier versions kept none. Raises PenstockError where neither is there.
    """
    launch = folder.read_launch_record()
    kept = _of_launch(launch, folder.tokenizer)
    if isinstance(kept, RunTokenizer):
        return kept
    try:
        dataset = open_planned(run, launch.dataset)[0]
        return RunTokenizer(dataset.tokenizer_json(), dataset.vocab, dataset.masked)
    except PenstockError as error:
        raise PenstockError(f"run '{folder.name}': {kept}. {error}") from None


def _of_launch(launch: LaunchRecord, path: Path) -> RunTokenizer | str:
    """Return the copy that a launch describes, or why there is none."""
    digest, vocab, masked = launch.tokenizer, launch.vocab, launch.masked
    if not vocab or not digest or masked is None:
        return "its folder keeps no tokenizer (an earlier version started it)"
    found = _kept(path, digest)
    return found if isinstance(found, str) else RunTokenizer(found, vocab, masked)


def _kept(path: Path, digest: str) -> bytes | str:
    """Return the content of a copy with this hash, or what is wrong with it."""
    try:
        content = read_bounded(path, TOKENIZER_BYTES, follow=False)
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}"
    if blake3(content).hexdigest() != digest:
        return f"{path} is damaged: it does not match its hash"
    return content
