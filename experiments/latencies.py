"""TTFT, ITL and end-to-end latency of every run as distributions.

    python experiments/latencies.py results/quickstart/<hash> -o latencies.pdf
"""

from arguments import figure_arguments, runs_of

from cbjax.report import draw_latencies, save

if __name__ == "__main__":
    study, output = figure_arguments("latencies", __doc__)
    print(save(draw_latencies(runs_of(study)), output))
