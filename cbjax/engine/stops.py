"""Finding stop strings in a text that arrives in pieces.

A stop string may be spread over several tokens, so the end of the text is held back while it may
still become one: the longest suffix that is a proper beginning of a stop string, and no more. The
held text is plain data kept with the request.

Of several stop strings the one that is complete first ends the text, and of those complete at the
same character the longest. This is the only rule whose result does not depend on how the text was
cut into tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scan:
    """What became of a piece of text.

    Attributes:
        text: to be shown now.
        held: to be passed to the next call, shown by nobody yet.
        stop: the stop string that ended the text, else None; then nothing is held.
    """

    text: str
    held: str
    stop: str | None = None


def scan_stops(
    held: str, text: str, stops: Sequence[str], *, final: bool = False, armed: bool = True
) -> Scan:
    """Show what can be shown of `held + text`, and end it at a stop string.

    Args:
        held: what the previous call held back; `""` at the start.
        text: the new characters.
        stops: non-empty stop strings; none shows everything at once.
        final: nothing follows, so nothing is held back.
        armed: False before `min_tokens` are out: the text is shown and can be no part of a stop.
    """
    waiting = held + text
    if not armed or not stops:
        return Scan(waiting, "")
    found = [
        (waiting.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in waiting
    ]
    if found:
        end, _, stop = min(found)
        return Scan(waiting[: end - len(stop)], "", stop)
    keep = 0 if final else max(_beginning_at_end(waiting, stop) for stop in stops)
    split = len(waiting) - keep
    return Scan(waiting[:split], waiting[split:])


def _beginning_at_end(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
