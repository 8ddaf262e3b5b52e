"""Reasons instead of booleans: every code carries the sentence shown to the user."""

from enum import IntEnum


class Reason(IntEnum):
    """An integer code that steers compiled code, with its sentence for people."""

    sentence: str

    # The default is for readers of `Reason(code)`, which looks a member up; every member gives one.
    def __new__(cls, code: int, sentence: str = ""):
        member = int.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        return member

    @property
    def word(self) -> str:
        """The code's name in lower case, as it stands in result files."""
        return self.name.lower()


class LimitedBy(Reason):
    """Why no further request was admitted in an iteration."""

    QUEUE_EMPTY = 0, "nothing was waiting"
    BUDGET = 1, "the iteration's token budget was used up or too small for the next prompt"
    SEATS = 2, "every seat was taken"
    BLOCKS = 3, "too few KV blocks were free for the next request"
    WATERMARK = 4, "admitting the next request would leave fewer free KV blocks than the watermark"
    PREEMPTING = 5, "running requests were preempted, so nothing new was let in"
    BATCH_RUNNING = 6, "the batch is fixed until its last request ends"
    ROWS = 7, "the waiting window was full, the rest waited in the backlog unseen"
    FREEZE = 8, "the policy froze admission"
    WAIT_TIMER = 9, "the policy waited for more requests or for a timer"
    READS = 10, "the KV entries that one iteration may read were used up"


class Refusal(Reason):
    """Why a request was turned away, at the door or by its policy."""

    NONE = 0, "not refused"
    EMPTY_PROMPT = 1, "the prompt is empty: send at least one token"
    PROMPT_TOO_LONG = (
        2,
        "the prompt leaves no room for an output token within max_length: shorten it or raise "
        "max_length",
    )
    NEVER_FITS = (
        3,
        "the prompt and one more token need more KV blocks than the pool has: shorten it or raise "
        "num_blocks",
    )
    PROMPT_EXCEEDS_ITERATION = (
        4,
        "the policy computes a prompt in one iteration and this one exceeds the most tokens of an "
        "iteration: shorten it, raise the iteration's tokens or choose a policy that chunks",
    )
    POLICY = 5, "the policy refused it"
    QUEUE_FULL = 6, "the queue was full: send it later or raise the queue's size"
    TIMEOUT = 7, "it waited longer than its queue timeout: send fewer at once or raise the timeout"
    OVERLOADED = 8, "as many requests as the policy takes were already inside: send it again later"
    INPUT_TOO_LONG = 9, "the prompt has more tokens than the policy takes: shorten it"
    CUT = 10, "the policy ended it after the most tokens that it reserves KV for"
    KV_OVERFLOW = 11, "the KV cache overflowed, and the policy then ends everything that runs"


class FinishReason(Reason):
    """Why a request ended."""

    NONE = 0, "still running"
    STOP = 1, "it produced an end or stop token"
    LENGTH = 2, "it reached max_tokens or max_length"
    ABORT = 3, "it was aborted"


class IterationKind(Reason):
    """What an iteration computed."""

    IDLE = 0, "nothing"
    PREFILL = 1, "prefill only"
    DECODE = 2, "decode only"
    MIXED = 3, "prefill and decode together"
