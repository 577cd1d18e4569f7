"""Pages of KV and index-K: real buffers, their byte layout, and how tokens are written and read back.

Layout. A page holds 256 tokens (`settings.PAGE_SIZE`). Every simulated layer has two regions per page:

* **KV**: one row of 64 bytes per token. Stored as planes: plane *i* holds bytes 8i..8i+7 of every row. The XOR of all
  planes gives 64 bits per row: the token id and, in the top byte, the token's place in the page (as RoPE would put it
  in). Every byte counts: change one and a token changes.
* **index-K**: one slot per 4 tokens with the real number of bytes per slot (0.5.23: fp8 128 + 4, fp4 64 + 4; bf16 256).
  Stored as planes of 4 bytes per slot; the XOR of the planes gives one byte per token: the KV row that holds it.

So index-K says where to look and KV says what is there, as sparse attention does. Rows are permuted per page, layer and
content: an index row that belongs to other content (never arrived, or left over from the page's former owner) points to
a wrong row, and the reader gets other tokens of the same page - plausible, wrong text. Slot *s* of a page is read from
layer *s mod layers*, so a layer that has not arrived damages its share of the text.

As in the real model the index decides nothing while every slot is selected anyway: up to `TOP_K` slots (2,048 tokens)
`attend` takes all KV rows in the order of their places and never looks at index-K.

Reads and writes go to the buffers as they are at that moment; nothing here waits, checks or repairs.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

KV_ROW_BYTES = 64
INDEX_SLOT_TOKENS = 4
INDEX_SLOT_BYTES = {"fp8": 132, "bf16": 256, "fp4": 68}
REGIONS = ("kv", "index_k")
KV, INDEX_K = 0, 1
TOP_K = 512
"""Index-K slots that the sparse attention selects (upstream ``index_topk``): more slots than this make it a choice."""
TOKEN_BITS = 56
"""Bits of a KV row that hold the token id; the rest holds its place in the page."""
_TOKEN_MASK = (1 << TOKEN_BITS) - 1
_LOST = 1 << 40
"""A token id that no text has: what a dense read finds where no row claims the place."""


class OutOfPagesError(Exception):
    """The pool has fewer free pages than asked for."""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Byte layout of one page in one layer. Sizes in bytes unless said otherwise."""

    page_size: int
    """Tokens per page; at most 256, a multiple of 4."""
    index_k_dtype: str
    layers: int

    def __post_init__(self) -> None:
        if not 4 <= self.page_size <= 256 or self.page_size % INDEX_SLOT_TOKENS:
            raise ValueError(f"page size {self.page_size}: must be 4 to 256 and a multiple of 4")

    @property
    def slots(self) -> int:
        """Index-K slots per page."""
        return self.page_size // INDEX_SLOT_TOKENS

    def item_bytes(self, region: int) -> int:
        """Bytes of one page of one layer in `region`."""
        if region == KV:
            return self.page_size * KV_ROW_BYTES
        return self.slots * INDEX_SLOT_BYTES[self.index_k_dtype]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers and regions."""
        return self.layers * (self.item_bytes(KV) + self.item_bytes(INDEX_K))

    def offset(self, layer: int, region: int) -> int:
        """Where a layer's region begins in a whole page as the host keeps it."""
        both = self.item_bytes(KV) + self.item_bytes(INDEX_K)
        return layer * both + (self.item_bytes(KV) if region == INDEX_K else 0)

    def owner(self, position: int) -> int:
        """The layer from which the token at `position` of a page is read."""
        return (position // INDEX_SLOT_TOKENS) % self.layers

    def rows(self, rotation: int) -> tuple[bytes, tuple[int, ...]]:
        """The KV row of each position, and the position of each row; `rotation` (odd) picks the permutation."""
        return _permutation(self.page_size, rotation)


@lru_cache(maxsize=1024)
def _permutation(size: int, rotation: int) -> tuple[bytes, tuple[int, ...]]:
    # A multiplier that shares a factor with the size would not permute; step on to one that does not.
    while math.gcd(rotation, size) != 1:
        rotation += 2
    rows = bytes((position * rotation + rotation // 2) % size for position in range(size))
    inverse = [0] * size
    for position, row in enumerate(rows):
        inverse[row] = position
    return rows, tuple(inverse)


class PagePool:
    """The "device memory": one buffer per layer and region, handed out by page.

    Freed pages keep their bytes and are handed out again last-in first-out, so stale content is the rule, as on a GPU.
    Anonymous memory: untouched pages cost nothing.
    """

    def __init__(self, layout: PageLayout, pages: int) -> None:
        self.layout = layout
        self.pages = pages
        self._buffers = [
            [mmap.mmap(-1, pages * layout.item_bytes(region)) for region in (KV, INDEX_K)] for _ in range(layout.layers)
        ]
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free_pages(self) -> int:
        """Pages not handed out."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages; raises `OutOfPagesError` and takes none when there are not enough."""
        if count > len(self._free):
            raise OutOfPagesError(f"{count} pages wanted, {len(self._free)} free")
        return [self._free.pop() for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back; their bytes stay."""
        self._free.extend(pages)

    def view(self, layer: int, region: int, page: int) -> memoryview:
        """The bytes of one page of one layer, to be read or written in place."""
        size = self.layout.item_bytes(region)
        return memoryview(self._buffers[layer][region])[page * size : (page + 1) * size]

    def write_item(self, layer: int, region: int, page: int, data: bytes) -> None:
        """Store bytes as a remote write does: at an address that the writer computed with its own item length.

        With equal layouts that is the page; with a smaller item of the writer's it is somewhere else, silently.
        """
        buffer = self._buffers[layer][region]
        start = page * len(data)
        end = min(start + len(data), len(buffer))
        buffer[start:end] = data[: end - start]


def _planes(first: bytes, total: int, seed: bytes) -> bytes:
    """`total` bytes whose planes (each as long as `first`) XOR to `first`; all but one plane come from `seed`."""
    plane = len(first)
    filler = hashlib.shake_128(seed).digest(total - plane)
    folded = int.from_bytes(first, "big")
    for start in range(0, len(filler), plane):
        folded ^= int.from_bytes(filler[start : start + plane], "big")
    return folded.to_bytes(plane, "big") + filler


def _fold(data: memoryview, plane: int) -> bytes:
    folded = 0
    for start in range(0, len(data), plane):
        folded ^= int.from_bytes(data[start : start + plane], "big")
    return folded.to_bytes(plane, "big")


def folded_index(pool: PagePool, layer: int, page: int) -> bytes:
    """The KV row of each position of a page, as the layer's index-K says it."""
    return _fold(pool.view(layer, INDEX_K, page), pool.layout.page_size)


def new_history() -> hashlib.blake2b:
    """State of a prompt of which nothing has been written yet."""
    return hashlib.blake2b(digest_size=16)


def chain(history: hashlib.blake2b, chunk: Sequence[int]) -> bytes:
    """Add a page's tokens to `history`; returns the digest that names the page's content and all before it."""
    history.update(struct.pack(f">{len(chunk)}Q", *chunk))
    return history.digest()


def write_tokens(
    pool: PagePool,
    pages: Sequence[int],
    tokens: Sequence[int],
    history: hashlib.blake2b | None = None,
    lost: int | None = None,
) -> None:
    """Compute KV and index-K of `tokens` (each below 2**56) and write them to `pages`, in order.

    A last page that is not full is padded with token id 0. `history` (from `new_history`) carries what came before
    when a prompt is written in several calls. The stores of layer `lost` never land (a broken kernel).
    """
    layout = pool.layout
    size = layout.page_size
    history = history or new_history()
    for number, page in enumerate(pages):
        chunk = list(tokens[number * size : (number + 1) * size])
        chunk += [0] * (size - len(chunk))
        units = [(token | place << TOKEN_BITS).to_bytes(8, "big") for place, token in enumerate(chunk)]
        digest = chain(history, chunk)
        for layer in range(layout.layers):
            if lost == layer:
                continue
            seed = digest + layer.to_bytes(2, "big")
            rotation = (seed[0] ^ (layer * 37)) | 1
            rows, inverse = layout.rows(rotation)
            table = b"".join(map(units.__getitem__, inverse))
            pool.view(layer, KV, page)[:] = _planes(table, layout.item_bytes(KV), seed + b"kv")
            pool.view(layer, INDEX_K, page)[:] = _planes(rows, layout.item_bytes(INDEX_K), seed + b"ik")


Folded = tuple[bytes, bytes]
"""Index-K rows and KV rows of one page and layer, as read at one moment."""


def fold(pool: PagePool, layer: int, page: int) -> Folded:
    """Read one page of one layer as the buffers are now."""
    return folded_index(pool, layer, page), _fold(pool.view(layer, KV, page), 8 * pool.layout.page_size)


def selective(layout: PageLayout, count: int) -> bool:
    """Whether a prompt of `count` tokens has more index slots than the sparse attention selects."""
    return -(-count // INDEX_SLOT_TOKENS) > TOP_K


def assemble(layout: PageLayout, seen: Sequence[Sequence[Folded]], count: int, *, sparse: bool) -> list[int]:
    """The `count` token ids that `seen` (per page, per layer) says: through index-K when `sparse`, else by KV alone."""
    size = layout.page_size
    tokens: list[int] = []
    for layers in seen:
        wanted = min(size, count - len(tokens))
        if wanted <= 0:
            break
        tables = [struct.unpack(f">{size}Q", table) for _, table in layers]
        if sparse:
            for position in range(wanted):
                owner = layout.owner(position)
                tokens.append(tables[owner][layers[owner][0][position] % size] & _TOKEN_MASK)
            continue
        places = [_LOST] * 256
        for owner, table in enumerate(tables):
            for row in table:
                place = row >> TOKEN_BITS
                if layout.owner(place) == owner:
                    places[place] = row & _TOKEN_MASK
        tokens += places[:wanted]
    return tokens


def read_tokens(pool: PagePool, pages: Sequence[int], count: int, *, sparse: bool = True) -> list[int]:
    """The `count` token ids that the bytes in `pages` say, right or wrong, by following index-K when `sparse`."""
    used = pages[: -(-count // pool.layout.page_size)]
    seen = [[fold(pool, layer, page) for layer in range(pool.layout.layers)] for page in used]
    return assemble(pool.layout, seen, count, sparse=sparse)


def attend(pool: PagePool, pages: Sequence[int], count: int) -> list[int]:
    """What sparse attention gets of a prompt: index-K matters only beyond `TOP_K` slots."""
    return read_tokens(pool, pages, count, sparse=selective(pool.layout, count))


def damage(data: bytearray, offset: int) -> None:
    """Flip the lowest bit of one byte; for fault injection in tests."""
    data[offset] ^= 1
