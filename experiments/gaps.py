"""Gaps between tokens over time: how streams stall while another prompt is computed.

    python experiments/gaps.py results/decode_stall/<hash> -o gaps.pdf
"""

from arguments import figure_arguments, runs_of

from cbjax.report import draw_gaps, save

if __name__ == "__main__":
    study, output = figure_arguments("gaps", __doc__)
    print(save(draw_gaps(runs_of(study)), output))
