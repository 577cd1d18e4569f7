"""Record what the real chat package does, as test data for `chat` and `dsml`.

Needs ``deepseek-recipe==0.2.0`` (what SGLang 0.5.23 uses for DeepSeek-V4) and ``tokenizers``; writes
``tests/unit/engine_sim/recipe_recordings.json``::

    python tools/record_recipe.py ../../tests/unit/engine_sim/recipe_recordings.json

The tokenizer is a byte-level one with the model's special tokens; the package's rules do not depend on the vocabulary.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MARK = "｜DSML｜"
SPECIALS = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    MARK,
    "<｜latest_reminder｜>",
    "<｜deepseek_image｜>",
]
GOOD = (
    f'Prose.\n\n<{MARK}tool_calls>\n<{MARK}invoke name="probe_echo">\n'
    f'<{MARK}parameter name="token" string="true">zk-41</{MARK}parameter>\n'
    f'<{MARK}parameter name="n" string="false">7</{MARK}parameter>\n</{MARK}invoke>\n</{MARK}tool_calls>'
)


def make_tokenizer() -> Tokenizer:
    """Byte-level tokenizer with the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    return tokenizer


TOKENIZER = make_tokenizer()
SPECIAL_TOKENS = recipe.SpecialTokens(image="<｜deepseek_image｜>")
NATIVE = recipe.Tokenizer.from_str(TOKENIZER.to_str())
ENCODING = recipe.DeepseekV4Encoding().with_special_tokens(SPECIAL_TOKENS).with_tokenizer(NATIVE)
OPTIONS = recipe.ConversionOptions().with_special_tokens(SPECIAL_TOKENS)


def render(body: dict[str, Any]) -> str:
    """The real prompt of a chat request in SGLang's form."""
    kwargs = dict(body)
    thinking = kwargs.pop("chat_template_kwargs", {}).get("thinking", False)
    kwargs |= {"model": "DeepSeek-V4-Pro", "thinking": {"type": "enabled" if thinking else "disabled"}}
    conversation = recipe.ChatCompletionRequest(kwargs).convert(OPTIONS).conversation
    return str(TOKENIZER.decode(ENCODING.encode(conversation), skip_special_tokens=False))


def parse(text: str, thinking: bool, tools: bool) -> dict[str, Any]:
    """The real parse of a whole output."""
    stage = recipe.ThinkingInitialStage.ReasoningStart if thinking else None
    options = recipe.ParsingOptions(
        parse_tool_calls=tools, parse_json_output=False, thinking_initial_stage=stage, special_tokens=SPECIAL_TOKENS
    )
    request = recipe.ConversationRequest(recipe.Conversation(), recipe.ModelVersion.DeepseekV4Pro)
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "", "DeepSeek-V4-Pro")
    processor = recipe.StreamProcessor(generator, options, NATIVE)
    chunks = []
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    if ids:
        chunks += processor.push(recipe.InferenceChunk.tokens(ids))
    if not processor.finished:
        chunks += processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop))
    content, reasoning, calls = "", "", {}
    for chunk in chunks:
        delta = json.loads(chunk.to_json())["choices"][0]["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls") or []:
            function = piece["function"]
            if function.get("name") is not None:
                calls[piece["index"]] = [function["name"], ""]
            calls[piece["index"]][1] += function["arguments"]
    return {"reasoning": reasoning, "content": content, "calls": [calls[index] for index in sorted(calls)]}


def damaged(rng: random.Random) -> str:
    """A damaged output: random edits of a good one, or random fragments."""
    close = f"</{MARK}invoke>\n"
    parameter = f'<{MARK}parameter name="k" string="true">v\n"w</{MARK}parameter>\n'
    block = f'<{MARK}tool_calls>\n<{MARK}invoke name="x">\n'
    fragments = [GOOD, block, parameter, parameter.replace("true", "false"), close, "abc\n\n", "</think>", MARK]
    fragments += [
        "<",
        "</",
        "\n",
        f"</{MARK}tool_calls>",
        f"</{MARK} calls>",
        ' true">',
        'invoke name="',
        '"',
        "é",
        ">",
    ]
    if rng.random() < 0.4:
        return "".join(rng.choice(fragments) for _ in range(rng.randint(1, 7)))
    text = GOOD if rng.random() < 0.6 else block + parameter + close + f'<{MARK}invoke name="y">\n' + parameter + close
    chars = list(text)
    for _ in range(rng.randint(1, 4)):
        place, kind = rng.randrange(len(chars)), rng.random()
        if kind < 0.4:
            del chars[place : place + rng.choice([1, 1, 2, 5, 20])]
        elif kind < 0.7:
            chars[place:place] = rng.choice(fragments)
        else:
            chars[place] = rng.choice('<>/"ab \n')
        chars = chars or ["x"]
    return "".join(chars)


def body(rng: random.Random) -> dict[str, Any]:
    """A random chat request."""
    texts = ["hi", "", "a\nb", f"{MARK} x <think>", [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}]]
    messages: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 7)):
        kind, text = rng.random(), rng.choice(texts)
        plain = text if isinstance(text, str) else "s"
        if kind < 0.2:
            messages.append({"role": "system", "content": text})
        elif kind < 0.55:
            messages.append({"role": "user", "content": text})
        elif kind < 0.75:
            messages.append({"role": "assistant", "content": plain, "reasoning_content": rng.choice([None, "why"])})
        else:
            arguments = ['{"a":"x","b":[1,{"z":null}]}', "{}", "oops", '{"a":1.0,"b":"é\\u0001"}']
            calls = [
                {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": rng.choice(arguments)}}
                for n in range(rng.randint(1, 2))
            ]
            messages.append({"role": "assistant", "content": rng.choice(["", None, "txt"]), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": plain} for call in calls]
    result: dict[str, Any] = {"messages": messages}
    schemas = [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"}]
    if rng.random() < 0.6:
        result["tools"] = [
            {"type": "function", "function": {"name": name, "description": 'é "q"', "parameters": schema}}
            for name, schema in zip(["f", "g"], schemas, strict=True)
        ]
    if rng.random() < 0.4:
        result["chat_template_kwargs"] = {"thinking": True}
        if rng.random() < 0.5:
            result["reasoning_effort"] = rng.choice(["low", "high", "max"])
    return result


def main(path: str) -> None:
    """Write the recordings."""
    rng = random.Random(23)
    prompts = [{"body": item, "prompt": render(item)} for item in (body(rng) for _ in range(30))]
    outputs = []
    for text in [GOOD, *(damaged(rng) for _ in range(200))]:
        thinking, tools = rng.random() < 0.3, rng.random() < 0.9
        outputs.append({"text": text, "thinking": thinking, "tools": tools, **parse(text, thinking, tools)})
    data = {"package": f"deepseek-recipe {recipe.__version__}", "prompts": prompts, "outputs": outputs}
    Path(path).write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
