import os
import platform

import pytest
from blake3 import blake3

from penstock.data.build import stdlib
from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.tokenizer import END, Tokenizer
from penstock.errors import PenstockError

FILES = {
    "abc.py": b"def f(x):\n    return x + 1\n",
    "json/decoder.py": b"import re\n\nNAN = float('nan')\n",
    "json/copy.py": b"import re\n\nNAN = float('nan')\n",
    "json/__init__.py": b"",
    "blank.py": b" \n\n",
    "test/latin.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "test/unicode.py": "größe = '∑'\r\n".encode(),
    "readme.txt": b"not code",
    "site-packages/other.py": b"x = 1\n",
    "dist-packages/other.py": b"x = 2\n",
    "json/__pycache__/cached.py": b"x = 3\n",
}


def lay_out(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def test_the_kept_documents_are_those_of_the_manifest(tmp_path):
    root = lay_out(tmp_path / "lib", FILES)
    found = Dataset.open(stdlib.build(tmp_path / "home", root=root))
    assert found.manifest.counts == {
        "filter": {"kept": 4, "empty": 2, "not UTF-8": 1},
        "deduplicate": {"kept": 3, "exact duplicate": 1},
    }
    lineage = found.manifest.lineage
    assert lineage["files"] == 7
    assert lineage["bytes"] == sum(len(FILES[path]) for path, _ in stdlib.python_files(root))
    assert lineage["python"] == platform.python_version()
    assert found.documents == 3
    assert found.verify() == []

    tokenizer = Tokenizer.from_json(found.tokenizer_json())
    assert found.vocab == tokenizer.vocab
    text = tokenizer.decode(found.read(0, found.tokens))
    kept = {FILES[path] for path in ("abc.py", "json/decoder.py", "test/unicode.py")}
    in_order = sorted(kept, key=lambda content: blake3(content).hexdigest())
    assert text == "".join(content.decode() + END for content in in_order)
    starts = found.document_starts(0).tolist()
    assert all(found.read(start - 1, start)[0] == tokenizer.end for start in starts[1:])


def test_the_version_depends_on_paths_and_content_alone(tmp_path, monkeypatch):
    first = stdlib.build(tmp_path / "a", root=lay_out(tmp_path / "lib", FILES))
    other = lay_out(tmp_path / "other" / "lib", dict(reversed(FILES.items())))
    for path, _ in stdlib.python_files(other):
        os.utime(other / path, (1, 1))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("LC_ALL", "C")
    assert stdlib.build(tmp_path / "b", root=other).name == first.name

    (other / "abc.py").write_bytes(b"def f(x):\n    return x + 2\n")
    assert stdlib.build(tmp_path / "b", root=other).name != first.name


def test_real_modules_build_twice_to_the_same_version(tmp_path):
    root = stdlib.library() / "json"
    told = []
    first = stdlib.build(tmp_path / "a", lambda *step: told.append(step), root)
    assert stdlib.build(tmp_path / "b", root=root).name == first.name
    assert [what for what, done, total in told if done == total] == [
        *("read", "train tokenizer", "tokenize")
    ]
    assert Dataset.open(first).tokens > 1000


def test_the_library_itself_is_found():
    paths = [path for path, _ in stdlib.python_files(stdlib.library())]
    assert {"json/decoder.py", "os.py"} <= set(paths)
    assert not any("-packages/" in path or "__pycache__" in path for path in paths)
    assert paths == sorted(paths, key=os.fsencode)


@pytest.mark.parametrize("files", [None, {"empty.py": b""}])
def test_a_python_without_source_is_refused(tmp_path, files):
    root = tmp_path / "lib"
    if files:
        lay_out(root, files)
    with pytest.raises(PenstockError, match="has no Python source"):
        stdlib.build(tmp_path / "home", root=root)
