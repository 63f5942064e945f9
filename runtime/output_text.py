"""From accepted tokens to events: detokenizing, stop strings, usage."""

from inferc.runtime.detokenizer import Detokenizer
from inferc.runtime.events import Event, Usage
from inferc.runtime.request import FinishReason, RequestId, SamplingParams, Sequence
from inferc.runtime.scheduler_config import StepOutput
from inferc.runtime.stopping import StopStrings
from inferc.runtime.tokenizer import TextTokenizer


class OutputText:
    """The text side of one sequence; `finish_reason` is set by the event that ends it."""

    def __init__(
        self,
        request: RequestId,
        index: int,
        sequence: Sequence,
        params: SamplingParams,
        tokenizer: TextTokenizer,
    ) -> None:
        self.request = request
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._sequence = sequence
        self._stops = StopStrings(params.stop)
        self._detokenizer = Detokenizer(
            tokenizer.token_bytes,
            sequence.token_ids,
            keep_special=not params.skip_special_tokens,
        )

    def accept(self, output: StepOutput) -> Event:
        """The event of a token. A token that stops the sequence adds no text of its own."""
        token = output.sampled.token
        stopped_by_token = output.finish_reason == "stop"
        text, stopped = self._screen("" if stopped_by_token else self._detokenizer.push(token))
        reason = output.finish_reason
        if not stopped and reason is not None:
            rest, stopped = self._screen(self._detokenizer.flush())
            text += rest + ("" if stopped else self._stops.flush())
        self.finish_reason = "stop" if stopped else reason
        return Event(
            self.request,
            self.index,
            text,
            token,
            output.sampled.logprob,
            output.sampled.top,
            self.finish_reason,
            self._usage() if self.finish_reason else None,
        )

    def cancel(self) -> Event:
        """The event that ends a cancelled sequence; text held back until now is dropped."""
        self.finish_reason = "cancelled"
        return Event(self.request, self.index, "", finish_reason="cancelled", usage=self._usage())

    def _screen(self, text: str) -> tuple[str, bool]:
        screened = self._stops.push(text)
        return screened.text, screened.stopped

    def _usage(self) -> Usage:
        prompt = self._sequence.prompt_tokens
        completion = len(self._sequence.token_ids) - prompt
        return Usage(prompt, completion, self._sequence.cached_tokens)
