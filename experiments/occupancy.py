"""Running and waiting requests and KV blocks in use over time.

    python experiments/occupancy.py results/quickstart/<hash> -o occupancy.pdf
"""

from arguments import figure_arguments, runs_of

from cbjax.report import draw_occupancy, save

if __name__ == "__main__":
    study, output = figure_arguments("occupancy", __doc__)
    print(save(draw_occupancy(runs_of(study)), output))
