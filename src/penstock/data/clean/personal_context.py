"""What stands around a number: separators and other digits, and the word that names it."""

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

# Seven digits or more with at most three separators between two of them, not inside a word.
_CLUSTER = re.compile(r"[0-9](?<![A-Za-z0-9_].)(?:[ ()./\u00a0\u2011\u2013\u202f-]{0,3}[0-9]){6,}+")
_WINDOW = 40  # characters before a number in which a word says what the number is
_OF_WORD = 10  # characters between a word and the # that belongs to it
_GAP = 24  # characters between that word and the number


class Clue(Enum):
    """What the nearest word before a number says about it."""

    PHONE = "phone"
    SSN = "ssn"
    NUMBER = "number"  # of an order, a book, a part: not personal


_WORDS = re.compile(
    r"(?P<phone>(?<![a-zà-ÿ])(?:tel|tél|tele(?:ph|f)\w*|télé(?:ph|f)\w*|phones?|fon|mobil\w*|cell"
    r"|cell ?phone|cellulare|celular|fax|telefax|whatsapp|sms|hotline|helpline|handy\w*"
    r"|rufnummer|anruf\w*|ruf\w*|durchwahl|call(?:ing)?|dial|appel\w*|joignable|portable"
    r"|ll[aá]m\w*|móvil|movil|chiam\w*|ligue|ligar|contact numbers?|contact no)(?![a-zà-ÿ])"
    r"|電話|携帯|电话|手机|फोन|тел)"
    r"|(?P<ssn>(?<![a-z])(?:ssn|ss#|social security)(?![a-z]))"
    r"|(?P<number>(?<![a-zà-ÿ])(?:orders?|order id|invoice|isbn|issn|ean|upc|sku|serial|ticket|case"
    r"|part|ref|reference|id|uuid|doi|pmid|lccn|patent|item|tracking|shipment|batch|lot|model|code|po"
    r"|rma|claim|policy|flight|account|customer|version|zip|cep|plz|imei|vin|offset|page|pages|pp"
    r"|time|timestamp|epoch|ts|block|trace|port|bestell\w*|rechnung\w*|auftrag\w*|artikel\w*"
    r"|kunden\w*|commande|facture|pedido|factura|ordine|fattura|aktenzeichen|az)(?![a-zà-ÿ])|#|№|[$€£¥])"
)


def clue_before(text: str, start: int) -> Clue | None:
    """Reads the nearest telling word before a number, on its line and with no digit between."""
    before = text[max(0, start - _WINDOW) : start].lower()
    words = list(_WORDS.finditer(before))
    if not words:
        return None
    last = words[-1]
    gap = before[last.end() :]
    if last[0] in "#№" and len(words) > 1 and last.start() - words[-2].end() <= _OF_WORD:
        last = words[-2]  # "Phone #" and "Social Security #": the word decides
    if len(gap) > _GAP or "\n" in gap or any(map(str.isdigit, gap)):
        return None
    return Clue(last.lastgroup)


def clusters(text: str, least: int) -> Iterator[tuple[int, int]]:
    """Gives the spans of digits with separators that hold at least `least` characters."""
    return ((start, end) for start, end in _clusters(text) if end - start >= least)


@lru_cache(maxsize=1)
def _clusters(text: str) -> list[tuple[int, int]]:
    """Finds them once for all recognisers, which ask in turn for the same text."""
    return [match.span() for match in _CLUSTER.finditer(text)]
