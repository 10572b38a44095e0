"""Sentences of web pages without fixed words: consent to cookies, newsletters, copyright.

The patterns expect lower-case lines at the beginning and end of a document.
"""

import re

_LONGEST = 500  # characters

_COOKIES = re.compile(
    r"\b(?:we|(?:this|our|the) (?:web)?sites?|this page|our partners)\b.{0,60}\b"
    r"us(?:e|es|ing) (?:[\w-]+,? ){0,4}cookies?\b"
    r"|\bby (?:continuing|using|browsing|clicking|closing)\b"
    r"|\b(?:wir (?:verwenden|nutzen)|diese (?:web)?seite (?:verwendet|nutzt)) .{0,30}cookies\b"
    r"|\b(?:nous utilisons|ce site utilise) .{0,30}cookies\b"
    r"|\b(?:utilizamos|usamos|este sitio (?:web )?(?:utiliza|usa)|este site (?:utiliza|usa)) "
    r".{0,30}cookies\b"
    r"|\b(?:questo sito (?:utilizza|usa)|utilizziamo) .{0,30}cookies?\b"
    r"|\b(?:deze (?:web)?site gebruikt|wij gebruiken|we gebruiken) .{0,30}cookies\b"
)
# A notice asks its reader for something; a text about cookies does not.
_ASKED = re.compile(
    r"\byou(?:r)? (?:agree|accept|consent|consenting|are agreeing|browsing|visit|experience"
    r"|user experience|online experience|preferences|settings)\b"
    r"|\bthe best (?:possible )?experience"
    r"|\b(?:cookie|privacy) (?:policy|notice|settings|preferences)\b|\buse of cookies\b"
    r"|\blearn more\b|\bfind out more\b|\bclick(?:ing)? .{0,20}\b(?:accept|ok|agree)\b"
    r"|\bzustimm|\beinverstanden\b|\bstimmen sie\b|\bihnen\b|\bdatenschutz"
    r"|\bvous (?:acceptez|offrir|proposer|garantir)\b|\bvotre (?:expérience|navigation)\b"
    r"|\b(?:su|tu|la mejor|sua|melhor|a melhor) (?:experiencia|experiência)\b|\bsi contin[uú]a"
    r"|\bacepta|\baceita|\bvoc[eê] concorda|\b(?:tua|migliore) esperienza\b|\bacconsent|\baccetti\b"
    r"|\buw? ervaring\b|\bakkoord\b"
)
_NEWSLETTER = re.compile(
    r"(?:please )?(?:subscribe|sign up|sign-up|join)(?: now| today| here)? (?:to|for) "
    r"(?:our|my)(?: [\w-]+){0,4} (?:newsletters?|mailing list|e-?mail updates|email list)"
    r"(?: (?:today|now|here|below|and\b.{0,100}))?[.!:]?"
    r"|(?:get|receive) .{1,80} (?:delivered )?(?:straight |right |directly )?"
    r"(?:in|to) your (?:email |mail)?(?:inbox|mailbox)[.!]?"
)
_SIGN = r"(?:copyright ?(?:©|\(c\)|&copy;)?|©|&copy;) ?(?:copyright )?"
_RESERVED = (
    r"(?:all rights? reserved|alle rechte vorbehalten|tous droits réservés|todos los derechos "
    r"reservados|todos os direitos reservados|tutti i diritti riservati|alle rechten voorbehouden"
    r"|все права защищены|版权所有|無断転載禁止)"
)
_COPYRIGHT = re.compile(
    rf"{_SIGN}[12][0-9]{{3}}\b.{{0,120}}|{_SIGN}[^:]{{0,80}}\b[12][0-9]{{3}}\b.{{0,60}}"
    rf"|(?:{_SIGN}.{{0,100}})?{_RESERVED}.{{0,60}}"
)


def notice_kind(line: str) -> str | None:
    """Return `cookies` or `subscribe` if the line is such a sentence, else None."""
    if len(line) > _LONGEST:
        return None
    if "cookie" in line and _COOKIES.search(line) and _ASKED.search(line):
        return "cookies"
    if _NEWSLETTER.fullmatch(line):
        return "subscribe"
    return None


def is_copyright(line: str) -> bool:
    """Return whether a line is a copyright line with a year or with reserved rights."""
    return len(line) <= _LONGEST and _COPYRIGHT.fullmatch(line) is not None
