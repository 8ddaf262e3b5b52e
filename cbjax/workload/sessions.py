"""Conversations of several turns: each prompt is the whole talk so far and a new message.

The next turn is due a time to think after the answer before it has ended, as with people. Or, with
a nominal time per token of an answer, at times that are fixed before the run, whether or not the
answer is there: then every policy meets the same ones. What a turn shares with the one before is
its whole prompt; the answer in between is made up here and differs from what a model would really
have said, so its KV is not found again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cbjax.workload.arrivals import Arrivals, arrival_times
from cbjax.workload.checks import require
from cbjax.workload.lengths import Lengths, draw_lengths
from cbjax.workload.segments import Segments
from cbjax.workload.streams import Stream, generator
from cbjax.workload.trace import Trace, trace_of_columns

FIRST_TURN, LATER_TURN = "first_turn", "later_turn"
_SYSTEM_ID = 0


@dataclass(frozen=True)
class Sessions:
    """What conversations are like.

    Args:
        turns: number of turns of a conversation.
        message_lengths: tokens of each message of the user.
        answer_lengths: tokens of each answer.
        think_median_s: median time between the end of an answer and the next message.
        think_sigma: standard deviation of its logarithm.
        token_s: nominal time of a token of the answer, for times fixed before the run; None: a turn
            waits for the answer before it.
        system_tokens: begin every prompt of every conversation.
        longest: most tokens of a prompt and its answer; a conversation ends before it would have
            more. None: no bound.

    Raises:
        ValueError: a value is impossible; the text names field, value and remedy.
    """

    turns: Lengths
    message_lengths: Lengths
    answer_lengths: Lengths
    think_median_s: float = 10.0
    think_sigma: float = 1.0
    token_s: float | None = None
    system_tokens: int = 0
    longest: int | None = None

    def __post_init__(self) -> None:
        for field in ("think_median_s", "think_sigma", "token_s", "system_tokens"):
            value = getattr(self, field) or 0.0
            require(0 <= value < np.inf, f"sessions.{field}", value, "use a finite number from 0")
        require(self.longest is None or self.longest > self.system_tokens + 1, "sessions.longest",
                self.longest, "use more than the system prompt, a message and an answer need")


def make_sessions(sessions: Sessions, count: int, arrivals: Arrivals, seed: int = 0) -> Trace:
    """Draw conversations; more of them begin with the same ones.

    Args:
        sessions: what they are like.
        count: number of conversations.
        arrivals: how they begin. The rate is that of requests: conversations begin at it divided
            by their mean number of turns, so that think times are the same at every rate.
        seed: everything random follows from it.

    Raises:
        ValueError: no conversations, arrivals without times, or none that fits `longest`.
    """
    require(count >= 1, "sessions.count", count, "use at least 1")
    require(arrivals.kind not in ("closed_loop", "recorded"), "arrivals.kind", arrivals.kind,
            "conversations begin at drawn times; use all_at_once, poisson, gamma or constant")
    drawn = [generator(seed, Stream.SESSIONS, use) for use in range(4)]
    turns = np.array(draw_lengths(sessions.turns, count, drawn[0]))
    total = int(turns.sum())
    message = np.array(draw_lengths(sessions.message_lengths, total, drawn[1]))
    answer = np.array(draw_lengths(sessions.answer_lengths, total, drawn[2]))
    think = sessions.think_median_s * np.exp(
        sessions.think_sigma * drawn[3].standard_normal(total)
    )
    begins = np.cumsum(turns) - turns  # the first turn of each conversation
    place = np.arange(total) - np.repeat(begins, turns)

    def before(per_turn: np.ndarray) -> np.ndarray:
        """The sum over the earlier turns of the same conversation."""
        total_before = np.cumsum(per_turn) - per_turn
        return total_before - np.repeat(total_before[begins], turns)

    prompt = sessions.system_tokens + before(message + answer) + message
    kept = np.ones(total, bool)
    if sessions.longest is not None:
        kept = prompt + answer <= sessions.longest  # grows with the turns
    require(kept.any(), "sessions.longest", sessions.longest,
            "not even one message and its answer fit; raise it or shorten them")
    starts = np.array(arrival_times(_of_sessions(arrivals, kept, count), count, seed), np.float64)
    arrival_s = np.repeat(starts, turns) + before(answer * (sessions.token_s or 0.0) + think)
    after = think_before = None
    if sessions.token_s is None:
        after = np.where(place > 0, np.cumsum(kept) - 2, -1)[kept]
        think_before = np.where(place > 0, np.append(0.0, think[:-1]), 0.0)[kept]
    return trace_of_columns(
        "sessions", arrival_s[kept], prompt[kept], answer[kept],
        class_of=np.where(place == 0, FIRST_TURN, LATER_TURN)[kept],
        segments=_segments(sessions.system_tokens, message, answer, place, np.flatnonzero(kept)),
        after=after, think_s=think_before,
    )


def _of_sessions(arrivals: Arrivals, kept: np.ndarray, count: int) -> Arrivals:
    if arrivals.rate is None:
        return arrivals
    fields: Mapping = {"burstiness": arrivals.burstiness}
    return Arrivals(arrivals.kind, rate=arrivals.rate * count / int(kept.sum()), **fields)


def _segments(
    system: int, message: np.ndarray, answer: np.ndarray, place: np.ndarray, rows: np.ndarray
) -> Segments:
    """The system prompt, then message and answer of each earlier turn, then the message."""
    head = int(system > 0)
    counts = head + 2 * place[rows] + 1
    offsets = np.concatenate([[0], np.cumsum(counts)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    # Messages and answers of all turns in one line, two places per turn.
    first = np.repeat(2 * (rows - place[rows]), counts)
    line = first + within - head
    texts = np.stack([message, answer], axis=1).reshape(-1)
    is_system = within < head
    return Segments(
        offsets, np.where(is_system, _SYSTEM_ID, line + 1),
        np.where(is_system, system, texts[np.maximum(line, 0)]).astype(np.int32),
    )
