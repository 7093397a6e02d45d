"""Every error that Looseleaf raises.

All derive from `LooseleafError`. Each keeps its numbers as attributes and survives pickling. A call that raised has
changed nothing.
"""

from __future__ import annotations

__all__ = [
    "BatchTooSmall",
    "CacheFolderUnavailable",
    "CorruptState",
    "DuplicateSequence",
    "EmptyPrompt",
    "ForkedProcess",
    "InvalidArgument",
    "InvalidType",
    "LooseleafError",
    "MissingPackage",
    "NeverFits",
    "OutOfBlocks",
    "OutOfMemory",
    "PromptMismatch",
    "SequenceTooLong",
    "StaleSequence",
    "StaleStep",
    "TooManySequences",
    "UnknownSequence",
    "UnsupportedModel",
]


class LooseleafError(Exception):
    """Base of all errors of this package."""


class OutOfBlocks(LooseleafError):
    """Not enough blocks now: wait, preempt or evict, then try again.

    Attributes:
        requested: blocks that the call needed.
        free: blocks on the free stack.
        evictable: cached blocks without holders.
    """

    def __init__(self, requested: int, free: int, evictable: int) -> None:
        super().__init__(requested, free, evictable)
        self.requested = requested
        self.free = free
        self.evictable = evictable

    def __str__(self) -> str:
        return f"need {self.requested} blocks, {self.free} free, {self.evictable} evictable"


class NeverFits(LooseleafError):
    """The request is larger than the whole pool: do not retry.

    Attributes:
        requested: blocks that the request needs.
        capacity: blocks that the pool has.
    """

    def __init__(self, requested: int, capacity: int) -> None:
        super().__init__(requested, capacity)
        self.requested = requested
        self.capacity = capacity

    def __str__(self) -> str:
        return f"need {self.requested} blocks, the pool has {self.capacity}"


class InvalidArgument(LooseleafError, ValueError):
    """An argument has a value that is not allowed; the text names it, what it was and what is allowed."""


class InvalidType(LooseleafError, TypeError):
    """An argument has a type or dtype that is not allowed; the text names it, what it was and what is allowed."""


class EmptyPrompt(InvalidArgument):
    """A sequence needs at least one token."""

    def __init__(self) -> None:
        super().__init__()

    def __str__(self) -> str:
        return "tokens is empty; a sequence needs at least 1 token"


class SequenceTooLong(InvalidArgument):
    """The sequence would outgrow its block table row.

    Attributes:
        requested: tokens that the sequence would hold.
        max_sequence_len: tokens that a sequence may hold.
    """

    def __init__(self, requested: int, max_sequence_len: int) -> None:
        super().__init__(requested, max_sequence_len)
        self.requested = requested
        self.max_sequence_len = max_sequence_len

    def __str__(self) -> str:
        return f"the sequence would hold {self.requested} tokens, max_sequence_len is {self.max_sequence_len}"


class TooManySequences(LooseleafError):
    """Every sequence slot is taken: release one, then try again.

    Attributes:
        max_sequences: sequences that can be alive at once.
    """

    def __init__(self, max_sequences: int) -> None:
        super().__init__(max_sequences)
        self.max_sequences = max_sequences

    def __str__(self) -> str:
        return f"all {self.max_sequences} sequences (max_sequences) are alive"


class StaleSequence(LooseleafError):
    """A sequence was used after its release.

    Attributes:
        handle: the integer handle that was used.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def __str__(self) -> str:
        return f"sequence handle {self.handle} was released"


class UnknownSequence(InvalidArgument):
    """A handle that this manager never issued.

    Attributes:
        handle: the integer handle that was used.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def __str__(self) -> str:
        return f"sequence handle {self.handle} was never issued by this manager"


class DuplicateSequence(InvalidArgument):
    """The same sequence stands twice in one call.

    Attributes:
        handle: the integer handle that stands twice.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def __str__(self) -> str:
        return f"sequence handle {self.handle} stands twice in one call"


class BatchTooSmall(InvalidArgument):
    """The call does not fit the buffers that it writes: a bound batch, or the arrays that were given.

    Attributes:
        what: the buffer dimension that is too small, such as "max_batch_tokens".
        requested: what the call needs.
        limit: what the buffers hold.
    """

    def __init__(self, what: str, requested: int, limit: int) -> None:
        super().__init__(what, requested, limit)
        self.what = what
        self.requested = requested
        self.limit = limit

    def __str__(self) -> str:
        return f"the call needs {self.what} >= {self.requested}, the buffers have {self.limit}"


class CorruptState(LooseleafError, RuntimeError):
    """A recount of the allocator's state disagrees with it: a bug, here or in a caller that released a block twice."""


class MissingPackage(LooseleafError, ImportError):
    """A package that this part of Looseleaf needs is not installed.

    Attributes:
        package: name of the package on PyPI.
        command: the command that installs it.
    """

    def __init__(self, package: str, command: str) -> None:
        super().__init__(package, command)
        self.package = package
        self.command = command

    def __str__(self) -> str:
        return f"the package {self.package} is missing; install it with: {self.command}"


class CacheFolderUnavailable(LooseleafError):
    """The user's cache folder cannot be used.

    Attributes:
        path: the file or folder that failed.
        reason: what was tried and why it failed.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use {self.path}: {self.reason}; LOOSELEAF_CACHE names another cache folder"


class PromptMismatch(InvalidArgument):
    """A prompt does not begin with the tokens that a cache has computed: its answer would belong to another text.

    Attributes:
        row: row of the batch.
        column: first column that differs, padding counted.
        token_id: what the prompt has there.
        cached_token_id: what the cache was computed from.
    """

    def __init__(self, row: int, column: int, token_id: int, cached_token_id: int) -> None:
        super().__init__(row, column, token_id, cached_token_id)
        self.row = row
        self.column = column
        self.token_id = token_id
        self.cached_token_id = cached_token_id

    def __str__(self) -> str:
        return (
            f"the prompt has token {self.token_id} in row {self.row}, column {self.column}, the cache has computed "
            f"{self.cached_token_id} there; begin() takes a new prompt, reset() empties the cache"
        )


class UnsupportedModel(LooseleafError):
    """The model does something that a paged cache does not offer, or does not use the attention that it was given."""


class OutOfMemory(LooseleafError, MemoryError):
    """The tensors of a cache do not fit the device: ask for fewer blocks.

    Attributes:
        requested_bytes: what the tensors need.
        available_bytes: what the device has left; 0 where it does not tell.
        device: name of the device.
    """

    def __init__(self, requested_bytes: int, available_bytes: int, device: str) -> None:
        super().__init__(requested_bytes, available_bytes, device)
        self.requested_bytes = requested_bytes
        self.available_bytes = available_bytes
        self.device = device

    def __str__(self) -> str:
        return f"the cache needs {self.requested_bytes} bytes on {self.device}, {self.available_bytes} are available"


class StaleStep(LooseleafError, RuntimeError):
    """A step was used after its commit, or after the next one was prepared, which has its tables and slots now."""


class ForkedProcess(LooseleafError, RuntimeError):
    """The process was forked: the blocks belong to the parent. Build a new manager in the child, or spawn it instead.

    Attributes:
        process: id of the process that made the manager.
    """

    def __init__(self, process: int) -> None:
        super().__init__(process)
        self.process = process

    def __str__(self) -> str:
        return f"the manager belongs to process {self.process}, which this one was forked from; build a new one here"
