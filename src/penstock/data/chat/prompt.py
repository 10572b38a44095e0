"""What a model that was taught by conversations is asked: one turn, and the call for an answer."""

from penstock.data.chat.spans import BREAK, Guard
from penstock.data.chat.template import DEFAULT, Template
from penstock.data.sources.messages import InvalidConversation
from penstock.data.tokenize.special import parse, read_special, special_tokens
from penstock.data.tokenize.tokenizer import load_engine
from penstock.errors import PenstockError


def chat_prompt(tokenizer_json: bytes, text: str) -> list[int]:
    """The tokens of `text` as a user's turn, by the tokenizer's template or the default one.

    Special tokens of the template get their ids; what the user spells out stays text.
    """
    config, special = parse(tokenizer_json), read_special(tokenizer_json)
    template = Template(special.template or DEFAULT, special)
    said = Guard(special_tokens(config)).text(text)
    try:
        rendered = template.render([{"role": "user", "content": said}], add_generation_prompt=True)
    except InvalidConversation as refused:
        raise PenstockError(
            f"The chat template refuses a single question: {refused.detail or refused.reason}. "
            "Ask without --chat, or build the data with another tokens.chat_template."
        ) from None
    engine = load_engine(config)
    engine.encode_special_tokens = False
    pieces = engine.encode_batch(rendered.split(BREAK), add_special_tokens=False)
    return [token for piece in pieces for token in piece.ids]
