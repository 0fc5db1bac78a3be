"""QR codes (ISO/IEC 18004) of short texts, as text for a terminal.

Only what a URL needs: bytes, error correction level M, versions 1 to 10 (up to 213 bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, pairwise, zip_longest

from callslip.errors import InvalidInputError

Matrix = list[list[bool]]
"""The modules of a code by row and column; True is dark."""

BLOCKS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (10, (16,)),
    (16, (28,)),
    (26, (44,)),
    (18, (32, 32)),
    (24, (43, 43)),
    (16, (27,) * 4),
    (18, (31,) * 4),
    (22, (38, 38, 39, 39)),
    (22, (36, 36, 36, 37, 37)),
    (26, (43, 43, 43, 43, 44)),
)
"""For each version, how many bytes of error correction a block has, and how many bytes of data each block has."""
ALIGNMENT: tuple[tuple[int, ...], ...] = (
    (),
    (6, 18),
    (6, 22),
    (6, 26),
    (6, 30),
    (6, 34),
    (6, 22, 38),
    (6, 24, 42),
    (6, 26, 46),
    (6, 28, 50),
)
"""For each version, the rows and columns of the centres of its alignment patterns."""
BYTE_MODE = 0b0100
PADDING = (0xEC, 0x11)
LEVEL_M = 0b00
FORMAT_MASK = 0b101010000010010
FORMAT_POLYNOMIAL = 0b10100110111
VERSION_POLYNOMIAL = 0b1111100100101
FIRST_VERSION_WITH_NUMBER = 7
FIELD_POLYNOMIAL = 0x11D
FINDER_SIZE = 7
QUIET = 4
"""The width of the empty border."""

MASKS: tuple[Callable[[int, int], bool], ...] = (
    lambda row, column: (row + column) % 2 == 0,
    lambda row, column: row % 2 == 0,
    lambda row, column: column % 3 == 0,
    lambda row, column: (row + column) % 3 == 0,
    lambda row, column: (row // 2 + column // 3) % 2 == 0,
    lambda row, column: row * column % 2 + row * column % 3 == 0,
    lambda row, column: (row * column % 2 + row * column % 3) % 2 == 0,
    lambda row, column: ((row + column) % 2 + row * column % 3) % 2 == 0,
)
FINDER_LOOKALIKES = (
    [True, False, True, True, True, False, True, False, False, False, False],
    [False, False, False, False, True, False, True, True, True, False, True],
)


def encode_text(text: str) -> Matrix:
    """Return the QR code of a text."""
    data = text.encode()
    version = _choose_version(len(data))
    words = _interleave(_to_words(data, version), version)
    empty = _Drawing(version)
    candidates = [empty.filled(words, mask) for mask in range(len(MASKS))]
    return min(candidates, key=_penalty)


def _choose_version(length: int) -> int:
    """Return the smallest version with room for so many bytes."""
    for version, (_, blocks) in enumerate(BLOCKS, 1):
        if 4 + _count_bits(version) + 8 * length <= 8 * sum(blocks):
            return version
    raise InvalidInputError("text", f"a QR code has room for 213 bytes, got {length}", 213)


def _count_bits(version: int) -> int:
    """Return how many bits the number of bytes has."""
    return 8 if version < 10 else 16


# Data and error correction


def _to_words(data: bytes, version: int) -> list[int]:
    """Return the bytes of data: the mode, the length, the text and padding."""
    room = 8 * sum(BLOCKS[version - 1][1])
    bits = f"{BYTE_MODE:04b}{len(data):0{_count_bits(version)}b}" + "".join(f"{byte:08b}" for byte in data)
    bits += "0" * min(4, room - len(bits))
    bits += "0" * (-len(bits) % 8)
    words = [int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)]
    missing = room // 8 - len(words)
    return words + [PADDING[number % 2] for number in range(missing)]


def _interleave(words: list[int], version: int) -> list[int]:
    """Split the data into blocks with error correction, and return them as they are drawn: byte by byte in turns."""
    count, sizes = BLOCKS[version - 1]
    divisor = _divisor(count)
    blocks: list[list[int]] = []
    start = 0
    for size in sizes:
        blocks.append(words[start : start + size])
        start += size
    corrections = [_remainder(block, divisor) for block in blocks]
    turns = chain(zip_longest(*blocks), zip(*corrections, strict=True))
    return [word for turn in turns for word in turn if word is not None]


def _multiply(one: int, other: int) -> int:
    """Multiply in the field GF(2^8)."""
    product = 0
    for bit in range(7, -1, -1):
        product = product << 1 ^ (product >> 7) * FIELD_POLYNOMIAL
        product ^= (other >> bit & 1) * one
    return product


def _divisor(degree: int) -> list[int]:
    """Return the generator polynomial of Reed-Solomon codes without its first coefficient, which is 1."""
    coefficients = [0] * (degree - 1) + [1]
    root = 1
    for _ in range(degree):
        coefficients = [
            _multiply(value, root) ^ following
            for value, following in zip(coefficients, [*coefficients[1:], 0], strict=True)
        ]
        root = _multiply(root, 2)
    return coefficients


def _remainder(data: list[int], divisor: list[int]) -> list[int]:
    remainder = [0] * len(divisor)
    for byte in data:
        factor = byte ^ remainder[0]
        remainder = [
            value ^ _multiply(coefficient, factor)
            for value, coefficient in zip([*remainder[1:], 0], divisor, strict=True)
        ]
    return remainder


def _with_check_bits(value: int, polynomial: int) -> int:
    """Append the bits of a BCH code."""
    degree = polynomial.bit_length() - 1
    rest = value << degree
    while rest.bit_length() > degree:
        rest ^= polynomial << (rest.bit_length() - 1 - degree)
    return value << degree | rest


# Drawing


class _Drawing:
    """The fixed patterns of a version, and the cells that are left for data."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._size = 17 + 4 * version
        self._modules: Matrix = [[False] * self._size for _ in range(self._size)]
        self._is_fixed: Matrix = [[False] * self._size for _ in range(self._size)]
        for number in range(self._size):
            self._set(6, number, number % 2 == 0)
            self._set(number, 6, number % 2 == 0)
        last = self._size - FINDER_SIZE
        for row, column in ((0, 0), (0, last), (last, 0)):
            self._draw_finder(row, column)
        self._draw_alignment()
        self._draw_format(0)  # Reserves its cells.
        if version >= FIRST_VERSION_WITH_NUMBER:
            self._draw_version()

    def _set(self, row: int, column: int, is_dark: bool) -> None:
        self._modules[row][column] = is_dark
        self._is_fixed[row][column] = True

    def _draw_finder(self, top: int, left: int) -> None:
        """Draw a finder pattern with the light line around it."""
        for row in range(max(top - 1, 0), min(top + FINDER_SIZE + 1, self._size)):
            for column in range(max(left - 1, 0), min(left + FINDER_SIZE + 1, self._size)):
                distance = max(abs(row - top - 3), abs(column - left - 3))
                self._set(row, column, distance not in (2, 4))

    def _draw_alignment(self) -> None:
        places = ALIGNMENT[self._version - 1]
        corners = [(places[0], places[0]), (places[0], places[-1]), (places[-1], places[0])] if places else []
        for middle in ((row, column) for row in places for column in places if (row, column) not in corners):
            for row in range(-2, 3):
                for column in range(-2, 3):
                    self._set(middle[0] + row, middle[1] + column, max(abs(row), abs(column)) != 1)

    def _draw_format(self, mask: int) -> None:
        """Draw both copies of the level and the mask."""
        bits = _with_check_bits(LEVEL_M << 3 | mask, FORMAT_POLYNOMIAL) ^ FORMAT_MASK
        size = self._size
        first = [*((row, 8) for row in (0, 1, 2, 3, 4, 5, 7, 8)), *((8, column) for column in (7, 5, 4, 3, 2, 1, 0))]
        second = [*((8, size - 1 - number) for number in range(8)), *((size - 7 + number, 8) for number in range(7))]
        for number in range(15):
            for row, column in (first[number], second[number]):
                self._set(row, column, bool(bits >> number & 1))
        self._set(size - 8, 8, True)

    def _draw_version(self) -> None:
        bits = _with_check_bits(self._version, VERSION_POLYNOMIAL)
        for number in range(18):
            near, far = number // 3, self._size - 11 + number % 3
            self._set(near, far, bool(bits >> number & 1))
            self._set(far, near, bool(bits >> number & 1))

    def _free_cells(self) -> Iterator[tuple[int, int]]:
        """Yield the cells for data in their order: pairs of columns from the right, upwards and downwards in turns."""
        is_upward = True
        for right in (column for column in range(self._size - 1, 0, -2)):
            column = right if right > 6 else right - 1  # The column of the timing pattern is left out.
            rows = range(self._size - 1, -1, -1) if is_upward else range(self._size)
            for row in rows:
                for cell in ((row, column), (row, column - 1)):
                    if not self._is_fixed[cell[0]][cell[1]]:
                        yield cell
            is_upward = not is_upward

    def filled(self, words: list[int], mask: int) -> Matrix:
        """Return the code with data and a mask."""
        self._draw_format(mask)
        modules = [row.copy() for row in self._modules]
        bits = (bool(word >> bit & 1) for word in words for bit in range(7, -1, -1))
        for row, column in self._free_cells():
            modules[row][column] = next(bits, False) ^ MASKS[mask](row, column)
        return modules


def _penalty(modules: Matrix) -> int:
    """Return how hard a code is to read, by the rules of the standard."""
    size = len(modules)
    columns = [list(column) for column in zip(*modules, strict=True)]
    total = sum(_line_penalty(line) for line in chain(modules, columns))
    for row, below in pairwise(modules):
        total += 3 * sum(row[at] == row[at + 1] == below[at] == below[at + 1] for at in range(size - 1))
    dark = sum(map(sum, modules))
    return total + 10 * (abs(20 * dark - 10 * size * size) // (size * size))


def _line_penalty(line: list[bool]) -> int:
    total, start = 0, 0
    for at in range(1, len(line) + 1):
        if at == len(line) or line[at] != line[start]:
            length = at - start
            total += length - 2 if length >= 5 else 0
            start = at
    return total + 40 * sum(line[at : at + 11] in FINDER_LOOKALIKES for at in range(len(line) - 10))


# On a terminal

_HALVES = {(False, False): "█", (False, True): "▀", (True, False): "▄", (True, True): " "}
"""The character for two modules above each other. Light modules are drawn, as most terminals are dark."""
_WHITE_ON_BLACK = "\x1b[97;40m"
_RESET = "\x1b[0m"


def draw_text(text: str, *, has_colors: bool) -> str:
    """Return the QR code of a text as lines for a terminal, two modules in each character."""
    modules = encode_text(text)
    side = [False] * QUIET
    empty = [False] * (len(modules) + 2 * QUIET)
    rows = [*[empty] * QUIET, *(side + row + side for row in modules), *[empty] * QUIET]
    if len(rows) % 2:
        rows.append(empty)
    lines = (
        "".join(_HALVES[pair] for pair in zip(upper, lower, strict=True))
        for upper, lower in zip(rows[::2], rows[1::2], strict=True)
    )
    return "\n".join(f"{_WHITE_ON_BLACK}{line}{_RESET}" if has_colors else line for line in lines)
