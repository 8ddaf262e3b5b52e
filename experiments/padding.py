"""Scheduled tokens against padded ones, iteration by iteration.

    python experiments/padding.py results/quickstart/<hash> -o padding.pdf
"""

from arguments import figure_arguments, runs_of

from cbjax.report import draw_padding, save

if __name__ == "__main__":
    study, output = figure_arguments("padding", __doc__)
    print(save(draw_padding(runs_of(study)), output))
