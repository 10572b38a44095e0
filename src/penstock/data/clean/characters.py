"""Character classes of the filters: a table of bits, looked up for a whole batch at once.

Letters, cases, white space and symbols come from Python's own Unicode data. So a result can change
with the Unicode version for code points that only one version knows; `UNICODE` belongs to the
identity of a result.
"""

import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

UNICODE = unicodedata.unidata_version

SPACE = 1 << 0  # str.isspace
ALPHA = 1 << 1  # str.isalpha
LOWER = 1 << 2  # a letter that is not a capital; letters without case are LOWER and UPPER
UPPER = 1 << 3
DIGIT = 1 << 4  # 0 to 9
PEEL = 1 << 5  # split off from either end of a word
FRONT = 1 << 6  # split off from the front only: currency, %, =, §
QUOTE = 1 << 7
SYMBOL = 1 << 8  # Gopher's rules do not count a word of only these
ICON = 1 << 9  # always a word by itself: emoji, arrows, ©
HYPHEN = 1 << 10
TERMINAL = 1 << 11  # ends a sentence
PUNCTUATION = 1 << 12  # Unicode's P* categories
OTHER = 1 << 13  # + . / : and so on: split only between certain neighbours

# Unicode's Sentence_Terminal, as FineWeb's and spaCy's lists have it.
TERMINALS = (
    "!.?\u0589\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965"
    "\u104a\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u17d6\u17d9\u17da\u1803\u1809"
    "\u1944\u1945\u1aa8\u1aa9\u1aaa\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e"
    "\u1c7f\u203c\u203d\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f\ua6f3"
    "\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uaaf0\uaaf1\uabeb\ufe52"
    "\ufe56\ufe57\uff01\uff0e\uff1f\uff61\U00010a56\U00010a57\U00010f55\U00010f56\U00010f57"
    "\U00010f58\U00010f59\U00010f86\U00010f87\U00010f88\U00010f89\U00011047\U00011048\U000110be"
    "\U000110bf\U000110c0\U000110c1\U00011141\U00011142\U00011143\U000111c5\U000111c6\U000111cd"
    "\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U0001144b\U0001144c"
    "\U000115c2\U000115c3\U000115c9\U000115ca\U000115cb\U000115cc\U000115cd\U000115ce\U000115cf"
    "\U000115d0\U000115d1\U000115d2\U000115d3\U000115d4\U000115d5\U000115d6\U000115d7\U00011641"
    "\U00011642\U0001173c\U0001173d\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    "\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f"
    "\U00016af5\U00016b37\U00016b38\U00016b44\U00016e98\U0001bc9f\U0001da88"
)
QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
# Symbols to Gopher's word rules, next to TERMINALS and the control characters; the full-width 1 is
# in the list that FineWeb was made with, so it is in this one.
SYMBOLS = (
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
)

_PEEL = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪—–"
_FRONT = "§%=$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿+"
_CONTROLS = [*range(9), 11, 12, *range(13, 32), *range(127, 160)]


@cache
def bits() -> npt.NDArray[np.uint16]:
    """Return the bits of every code point. The first call takes a quarter of a second."""
    every = [chr(point) for point in range(0x110000)]
    category = list(map(unicodedata.category, every))
    alpha = np.array(list(map(str.isalpha, every)))
    icon = np.array([kind == "So" for kind in category])
    icon[ord("…")] = True

    table = np.zeros(len(every), np.uint16)
    table[np.array(list(map(str.isspace, every)))] |= SPACE
    table[alpha] |= ALPHA
    table[alpha & ~np.array([kind in ("Lu", "Lt") for kind in category])] |= LOWER
    table[alpha & ~np.array([kind == "Ll" for kind in category])] |= UPPER
    table[np.array([kind[0] == "P" for kind in category])] |= PUNCTUATION
    table[icon] |= ICON | PEEL
    for characters, bit in (
        ("0123456789", DIGIT),
        (_PEEL, PEEL),
        (QUOTES, PEEL | QUOTE),
        (_FRONT, FRONT),
        (SYMBOLS + TERMINALS + "".join(map(chr, _CONTROLS)), SYMBOL),
        ("-–—~", HYPHEN),
        (TERMINALS, TERMINAL),
        (".+*^:<>=/@%", OTHER),
    ):
        table[[ord(character) for character in characters]] |= bit
    table.flags.writeable = False
    return table
