"""Spans say who held which seat, what was computed there, and who waited."""

from cbjax.report.spans import stays, waits, work


def test_the_worked_example_static_and_continuous(example):
    static, continuous = example(True).tables, example(False).tables
    for tables in (static, continuous):
        held = [(stay.request_id, stay.seat) for stay in stays(tables.schedule)]
        assert held == [(0, 0), (1, 1), (2, 0)]
    # C starts after B in one, when A leaves its seat in the other.
    ends = {stay.request_id: stay.end_s for stay in stays(static.schedule)}
    assert stays(static.schedule)[2].start_s >= ends[1]
    assert stays(continuous.schedule)[2].start_s < ends[1]


def test_prefill_chunks_stay_apart_and_decodes_join(example):
    pieces = work(example(True).tables.schedule)
    of_b = [(piece.kind, piece.tokens) for piece in pieces if piece.request_id == 1]
    assert of_b == [("prefill", 1), ("decode", 3)]


def test_a_preempted_request_leaves_its_seat_and_waits_again(batcher_run):
    run = batcher_run(num_blocks=20, seats=4)
    held, waiting = stays(run.tables.schedule), waits(run.tables)
    assert run.metrics["preemptions"] > 0
    assert sum(stay.preempted for stay in held) == run.metrics["preemptions"]
    assert sum(wait.again for wait in waiting) == run.metrics["preemptions"]
    for lost in (stay for stay in held if stay.preempted):
        again = [w for w in waiting if w.request_id == lost.request_id and w.again]
        assert lost.end_s in [wait.start_s for wait in again]


def test_nobody_is_in_two_places_and_no_place_holds_two(batcher_run):
    run = batcher_run(num_blocks=20, seats=3)
    places = [((0, stay.seat), stay) for stay in stays(run.tables.schedule)]
    places += [((1, wait.lane), wait) for wait in waits(run.tables)]
    for key in (lambda place, span: place, lambda place, span: span.request_id):
        groups: dict = {}
        for place, span in places:
            groups.setdefault(key(place, span), []).append((span.start_s, span.end_s))
        for spans in groups.values():
            spans.sort()
            for (_, end_s), (start_s, _) in zip(spans, spans[1:], strict=False):
                assert start_s >= end_s - 1e-9


def test_every_granted_token_is_in_a_piece_of_work(batcher_run):
    run = batcher_run()
    assert sum(piece.tokens for piece in work(run.tables.schedule)) == (
        run.tables.iterations["scheduled_tokens"].sum()
    )
