"""Request timelines: who held which seat when, run under run.

    python experiments/timeline.py results/quickstart/<hash> -o timeline.pdf
"""

from arguments import figure_arguments, runs_of

from cbjax.report import draw_timeline, save

if __name__ == "__main__":
    study, output = figure_arguments("timeline", __doc__)
    print(save(draw_timeline(runs_of(study)), output))
