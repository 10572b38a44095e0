"""What a model is asked is what it saw in training, up to the answer."""

from dataclasses import replace

import numpy as np
import pytest
from chat_models import MODELS, model

from penstock.data.chat.encode import ChatEncoder, EncodedConversation, chat_prompt
from penstock.data.sources.messages import Conversation
from penstock.data.tokenize.fast import REFERENCE
from penstock.data.tokenize.special import read_special, with_special
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError

# A template that cannot call for an answer has only what comes before it.
CALLING = [name for name in MODELS if "add_generation_prompt" in read_special(model(name)).template]


@pytest.mark.parametrize("name", CALLING)
def test_the_prompt_is_the_beginning_of_the_conversation(name: str) -> None:
    asked = {"role": "user", "content": "What is 2 + 2, please?"}
    answered = {"role": "assistant", "content": "Four."}
    (whole,) = ChatEncoder(model(name), engines=(REFERENCE,)).encode(
        [Conversation((asked, answered))]
    )
    assert isinstance(whole, EncodedConversation)
    before = whole.ids[: int(np.argmax(whole.mask))].tolist()
    assert chat_prompt(model(name), asked["content"]) == before


def test_a_special_token_that_the_user_spells_out_stays_text() -> None:
    content = model(next(iter(MODELS)))
    special = read_special(content)
    plain = chat_prompt(content, "end")
    spelled = chat_prompt(content, f"{special.end} end")
    assert spelled.count(special.end_id) == plain.count(special.end_id)
    assert f"{special.end} end" in Tokenizer(content).decode(spelled)


def test_a_template_that_refuses_a_question_is_reported() -> None:
    content = Tokenizer.from_json(model("default")).to_json()
    special = read_special(content)
    refusing = replace(special, template="{{ raise_exception('never') }}")
    with pytest.raises(PenstockError, match="refuses a single question: never"):
        chat_prompt(with_special(content, refusing), "Hi")
