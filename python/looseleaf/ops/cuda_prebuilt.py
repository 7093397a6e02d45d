"""The CUDA library that a wheel carries, and whether it serves the cards of this machine.

What it holds stands in a record beside it, which is read without loading it. Machine code runs on cards of its own
major architecture from its minor one on; PTX on every later card, but only where the driver is at least as new as the
CUDA that made it, because the driver translates it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from looseleaf.ops.library_cache import PREBUILT

if TYPE_CHECKING:
    from pathlib import Path

    from looseleaf.machine.cuda_driver import Driver

__all__ = ["LIBRARY_NAME", "Record", "find_prebuilt", "refusal"]

LIBRARY_NAME = "looseleaf_cuda.so"


@dataclass(frozen=True, slots=True)
class Record:
    """What a library holds.

    Attributes:
        cuda: the version that made it, `13.2`.
        architectures: of its machine code, `90` for compute capability 9.0.
        ptx: the architectures of its PTX.
    """

    cuda: str
    architectures: tuple[str, ...]
    ptx: tuple[str, ...]

    def write(self, library: Path) -> None:
        """Write it beside its library."""
        library.with_suffix(".json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, library: Path) -> Record:
        """Read what was written beside a library.

        Raises:
            OSError: there is nothing.
            ValueError: it is no record.
        """
        fields = json.loads(library.with_suffix(".json").read_text(encoding="utf-8"))
        try:
            cuda, architectures, ptx = (fields[name] for name in ("cuda", "architectures", "ptx"))
            record = cls(cuda, tuple(architectures), tuple(ptx))
            _version(record.cuda), [_capability(name) for name in (*record.architectures, *record.ptx)]
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("no record of a library") from error
        return record


def find_prebuilt(driver: Driver | None) -> tuple[Path, str | None]:
    """The library of this installation, and why it does not serve; None where it does."""
    library = PREBUILT / LIBRARY_NAME
    if not library.is_file():
        return library, "is not there"
    try:
        record = Record.read(library)
    except (OSError, ValueError) as error:
        return library, f"has no record of what it holds: {error}"
    return library, refusal(record, driver)


def refusal(record: Record, driver: Driver | None) -> str | None:
    """Why a library does not serve every card of a machine.

    Args:
        record: what the library holds.
        driver: the machine's driver and cards.

    Returns:
        The reason, to stand behind "the prebuilt library"; None where it serves.

    >>> refusal(Record("13.2", ("90",), ()), None)
    'needs a CUDA driver, and there is none'
    """
    if driver is None:
        return "needs a CUDA driver, and there is none"
    if not driver.cards:
        return f"needs a card, and the driver shows none: {driver.fault}"
    if driver.cuda[0] < _version(record.cuda)[0]:
        return f"was made with CUDA {record.cuda}, and the driver supports {_dotted(driver.cuda)}"
    for card in driver.cards:
        if any(_runs(_capability(name), card.capability) for name in record.architectures):
            continue
        named = f"{card.name} ({_dotted(card.capability)})"
        if all(_capability(name) > card.capability for name in record.ptx):
            held = ", ".join((*record.architectures, *(f"{name} as PTX" for name in record.ptx)))
            return f"holds code for {held}, none of which runs on {named}"
        if driver.cuda < _version(record.cuda):
            return (
                f"holds only PTX for {named}, of CUDA {record.cuda}, which a driver of CUDA {_dotted(driver.cuda)} "
                "cannot translate"
            )
    return None


def _runs(code: tuple[int, int], card: tuple[int, int]) -> bool:
    return code[0] == card[0] and code[1] <= card[1]


def _capability(name: str) -> tuple[int, int]:
    return divmod(int(name), 10)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
