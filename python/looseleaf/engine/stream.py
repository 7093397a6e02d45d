"""One call of an engine: its requests, and what of them was not handed out yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from looseleaf.engine.output import Output

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from looseleaf.engine.request import Request
    from looseleaf.engine.result import TokenEvent

__all__ = ["Stream"]


class Stream:
    """The requests of one call.

    Args:
        requests: in the order of their prompts, each with its samples.
        tokenizer: None for answers without text.
        with_text: whether events carry text; results do anyway.

    Attributes:
        requests: as given.
        members: these and their samples, as long as the stream lives.
        outputs: of the requests and samples whose end was not handed out.
        is_closed: whether its caller has left.
        news: those among them that have a new token or an error. A step costs what it has to say, not what waits.
    """

    __slots__ = ("is_closed", "members", "news", "outputs", "requests")

    def __init__(self, requests: list[Request], tokenizer: PreTrainedTokenizerBase | None, *, with_text: bool) -> None:
        self.requests = requests
        self.is_closed = False
        self.members = [one for request in requests for one in (request, *request.samples)]
        self.outputs = {one: Output(one, tokenizer, with_text=with_text) for one in self.members}
        self.news: dict[Request, None] = {}

    def take(self) -> tuple[list[TokenEvent], list[Request]]:
        """New events, in order of the prompts; and the requests that ended just now, at a stop string: abort them."""
        events: list[TokenEvent] = []
        stopped = []
        news, self.news = self.news, {}
        for request in sorted(news, key=lambda request: (request.index, request.sample)):
            output = self.outputs.get(request)
            if output is None:
                continue
            was_running = request.finish_reason is None
            events += output.take()
            if request.finish_reason is not None:
                del self.outputs[request]
                if was_running:
                    stopped.append(request)
        return events, stopped
