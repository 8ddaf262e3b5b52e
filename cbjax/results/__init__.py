"""What a run leaves behind: identity, folders, files, and one table over many runs."""

from cbjax.results.average import average_seeds
from cbjax.results.capacity import has_capacity, read_capacity, write_capacity
from cbjax.results.collect import collect_runs, flatten
from cbjax.results.environment import describe_environment
from cbjax.results.fidelity import read_fidelity, write_fidelity
from cbjax.results.hashing import content_digest, identity_hash, plain, source_digest
from cbjax.results.labels import parts_of, short_label
from cbjax.results.lock import FolderInUse
from cbjax.results.runs import NotARun, Run, is_run, read_requests, read_run, write_run
from cbjax.results.store import Study, is_finished, is_study, open_study

__all__ = [
    "FolderInUse",
    "NotARun",
    "Run",
    "Study",
    "average_seeds",
    "collect_runs",
    "content_digest",
    "describe_environment",
    "flatten",
    "has_capacity",
    "identity_hash",
    "is_finished",
    "is_run",
    "is_study",
    "open_study",
    "parts_of",
    "plain",
    "read_capacity",
    "read_fidelity",
    "read_requests",
    "read_run",
    "short_label",
    "source_digest",
    "write_capacity",
    "write_fidelity",
    "write_run",
]
