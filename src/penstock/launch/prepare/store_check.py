"""A check that this machine can use an object store: it writes, reads and deletes an object."""

import secrets

from penstock.data.store.objects import Store, is_url
from penstock.errors import PenstockError
from penstock.secret import redact

PATIENCE_S = 5.0


def store_problem(url: str) -> str:
    """Return why a run cannot keep its checkpoints at this URL; "" where it can."""
    if not is_url(url):
        return ""
    name, content = f".penstock-check-{secrets.token_hex(8)}", b"penstock"
    try:
        store = Store(url, patience_s=PATIENCE_S)
        store.put(name, content)
        found = store.get(name)
        store.delete(name)
    except (OSError, PenstockError) as error:
        return f"{redact(url)} cannot be used: {error}"
    return "" if found == content else f"{redact(url)} gave back other bytes than were written"
