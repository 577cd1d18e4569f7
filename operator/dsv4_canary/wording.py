"""Words of the probes: the long filler text, and nonces. Pure but for the randomness of a nonce."""

from __future__ import annotations

import random
import secrets

_NONCE_WORDS = (
    "amber",
    "anvil",
    "basil",
    "birch",
    "cedar",
    "cobalt",
    "comet",
    "copper",
    "coral",
    "crane",
    "delta",
    "ember",
    "fennel",
    "fjord",
    "garnet",
    "ginger",
    "glade",
    "gravel",
    "hazel",
    "heron",
    "indigo",
    "ivory",
    "jasper",
    "juniper",
    "kelp",
    "lagoon",
    "lantern",
    "larch",
    "linen",
    "lotus",
    "maple",
    "marble",
    "meadow",
    "mica",
    "nectar",
    "nickel",
    "ochre",
    "olive",
    "onyx",
    "opal",
    "orchid",
    "otter",
    "pebble",
    "pine",
    "plume",
    "poppy",
    "quartz",
    "quince",
    "ramp",
    "raven",
    "reed",
    "saffron",
    "sable",
    "slate",
    "spruce",
    "sumac",
    "tansy",
    "thistle",
    "topaz",
    "tulip",
    "umber",
    "velvet",
    "walnut",
    "willow",
    "zinc",
)

_SUBJECTS = (
    "the ferry",
    "the gardener",
    "a heavy cart",
    "the old bridge",
    "our neighbour",
    "the baker",
    "a grey heron",
    "the night train",
    "the river",
    "a quiet crowd",
    "the carpenter",
    "the north wind",
    "an empty boat",
    "the schoolhouse",
    "the market",
    "a young clerk",
)
_VERBS = (
    "waits beside",
    "passes",
    "turns towards",
    "looks over",
    "leans against",
    "returns to",
    "moves around",
    "rests near",
    "crosses",
    "follows",
    "leaves",
    "watches",
    "circles",
    "reaches",
    "avoids",
    "borders",
)
_OBJECTS = (
    "the stone wall",
    "a narrow lane",
    "the wooden gate",
    "the south field",
    "an open window",
    "the long pier",
    "a row of trees",
    "the village square",
    "the mill pond",
    "a low hill",
    "the tall tower",
    "the iron fence",
    "the small harbour",
    "a dusty road",
)
_TIMES = (
    "before sunrise",
    "in the late afternoon",
    "after the rain",
    "during the harvest",
    "on most winter days",
    "when the bell rings",
    "until the evening",
    "at the end of the week",
    "while the fog lifts",
    "early in the spring",
)

_WORD_MARGIN = 64


def filler(seed: str, prompt_tokens: int) -> str:
    """Text of more than ``prompt_tokens`` tokens; the same seed and size always give the same text.

    A byte-pair tokenizer does not merge across a space between words, so a text has at least as many tokens
    as words: counting words holds for every model without carrying its tokenizer. The length varies a little
    with the seed so that one unlucky prompt length cannot fail every probe.
    """
    rng = random.Random(f"dsv4-canary/{seed}")  # noqa: S311 - must be reproducible
    wanted = prompt_tokens + _WORD_MARGIN + rng.randrange(13)
    lines: list[str] = []
    count = 0
    while count < wanted:
        parts = (rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS), rng.choice(_TIMES))
        line = " ".join(parts)
        count += line.count(" ") + 1
        lines.append(line[0].upper() + line[1:] + ".")
    return " ".join(lines)


def fresh_nonce() -> str:
    """A token such as ``zk-41-quartz-ramp``: letters, digits and words, never seen before."""
    letters = "".join(secrets.choice("abcdefghjkmnpqrstvwxyz") for _ in range(2))
    words = "-".join(secrets.choice(_NONCE_WORDS) for _ in range(2))
    return f"{letters}-{secrets.randbelow(90) + 10}-{words}"
