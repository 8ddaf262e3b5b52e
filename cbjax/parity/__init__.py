"""Parity: recorded decisions of other systems' own schedulers, replayed through our policies.

    python -m cbjax.parity FILE.jsonl.gz ...

A recorded trace holds a workload and every decision that the original made on it. The array policy
serves the same workload and must decide the same in every field of every iteration.
"""
