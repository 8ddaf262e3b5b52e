"""Capacity: the greatest offered load that meets a service-level objective."""

from cbjax.capacity.judge import Limit, Tolerances, Verdict, judge
from cbjax.capacity.search import Bracket, Search, greatest_load

__all__ = [
    "Bracket",
    "Limit",
    "Search",
    "Tolerances",
    "Verdict",
    "greatest_load",
    "judge",
]
