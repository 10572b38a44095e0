"""Conversations: the same text, ids and learned tokens as transformers, and MB per CPU-second.

    python benchmarks/chat.py --peers PYTHON_WITH_TRANSFORMERS

The templates are those of the tests, the conversations seeded nonsense with blanks, code, many
scripts and tools. Ids are compared where no text spells a special token: there transformers gives
that text the token, and we do not. Masks are compared for templates that say what is learned.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "data" / "chat"))

from chat_models import MODELS, model

from penstock.data.chat.encode import ChatEncoder, EncodedConversation
from penstock.data.chat.template import ChatTemplate
from penstock.data.sources.messages import Conversation, InvalidConversation
from penstock.data.tokenize.special import read_special
from penstock.data.tokenize.tokenizer import Tokenizer

PEER = """
import json, sys, time
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
out = {}
for name, (content, template, names, talks) in json.load(sys.stdin).items():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(content), **names)
    tokenizer.chat_template = template
    rows, spent = [], 0.0
    for talk, tools in talks:
        common = dict(tools=tools or None)
        try:
            text = tokenizer.apply_chat_template(talk, tokenize=False, **common)
            start = time.process_time()
            got = tokenizer.apply_chat_template(
                talk, tokenize=True, return_dict=True,
                return_assistant_tokens_mask="{% generation %}" in template, **common)
        except Exception as error:
            rows.append(None)
            continue
        spent += time.process_time() - start
        rows.append([text, got["input_ids"], got.get("assistant_masks")])
    out[name] = [rows, spent]
print(json.dumps(out))
"""
WORDS = [
    "Hello",
    "world",
    "naïve",
    "日本語",
    "हिन्दी",
    "😀",
    "def f(x):\n    return x",
    "\n\n",
    "  ",
    "1234",
]
WORDS += ["it's", "<b>", "</think>", "<tool_call>", "{}", "\t", "\r\n", "“so”", "a_b", "the", "of"]


def talks(count: int) -> list[tuple[list[dict], list[dict]]]:
    rng = random.Random(0)
    found = []
    for _ in range(count):
        turns = rng.choice([2, 2, 4, 6])
        messages = [
            {
                "role": "assistant" if at % 2 else "user",
                "content": "x" + " ".join(rng.choices(WORDS, k=rng.randrange(60))),
            }
            for at in range(turns)
        ]
        if rng.random() < 0.3:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        tools = [{"name": "add", "ü": "<&>"}] if rng.random() < 0.2 else []
        found.append((messages, tools))
    return found


def compare(name: str, peer: list, asked: list) -> str:
    special = read_special(model(name))
    template = ChatTemplate(special.template, special)
    encoder, tokenizer = ChatEncoder(model(name)), Tokenizer(model(name))
    conversations = [Conversation(tuple(messages), tuple(tools)) for messages, tools in asked]
    encoder.encode(conversations[:20])
    start = time.process_time()
    results = encoder.encode(conversations)
    ours_s = time.process_time() - start
    rows, peer_s = peer
    texts = ids = masks = refused = 0
    for conversation, result, row in zip(conversations, results, rows, strict=True):
        if row is None or isinstance(result, InvalidConversation):
            assert row is None, (name, result)
            assert isinstance(result, InvalidConversation), (name, conversation)
            refused += 1
            continue
        assert isinstance(result, EncodedConversation)
        text, tokens, learned = row
        assert template.render(conversation.messages, conversation.tools) == text, name
        texts += 1
        ours = result.ids.tolist()
        if len(ours) > len(tokens):  # END was put behind
            assert ours == [*tokens, special.end_id], name
        else:  # nothing, or blanks behind END, left out
            assert ours == tokens[: len(ours)], name
            assert not tokenizer.decode(tokens[len(ours) :]).strip(), name
        ids += 1
        if learned:
            shared = min(len(ours), len(learned))
            assert result.mask[:shared].tolist() == [bool(one) for one in learned[:shared]], name
            assert not any(learned[shared:]), name
            assert not result.mask[shared:].any(), name
            masks += 1
    size = sum(len(conversation.text().encode()) for conversation in conversations) / 1e6
    return (
        f"{name:15} same text {texts}, ids {ids}, masks {masks}, both refuse {refused}; "
        f"ours {size / ours_s:5.1f} MB/CPU-s, transformers {size / peer_s:5.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", required=True)
    parser.add_argument("--talks", type=int, default=400)
    options = parser.parse_args()
    asked = talks(options.talks)
    names = [name for name in MODELS if MODELS[name][0]]
    given = {
        name: (model(name).decode(), MODELS[name][0], MODELS[name][3], asked) for name in names
    }
    call = [options.peers, "-c", PEER]
    done = subprocess.run(call, input=json.dumps(given), capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    for name, peer in json.loads(done.stdout).items():
        print(compare(name, peer, asked), flush=True)


if __name__ == "__main__":
    main()
