"""Latency percentiles, throughput, batch size, KV memory and padding: a line per run.

    python experiments/by_run.py results/policies/<hash> -o by_run.pdf
"""

from arguments import figure_arguments

from cbjax import collect_runs
from cbjax.report import draw_by_run, save

if __name__ == "__main__":
    study, output = figure_arguments("by_run", __doc__)
    print(save(draw_by_run(collect_runs(study)), output))
