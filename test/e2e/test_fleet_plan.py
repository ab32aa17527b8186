"""The simulation of bench/fleet.py, where the answer is known."""
import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fleet", Path(__file__).resolve().parents[2] / "bench/fleet.py")
fleet = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fleet)

COSTS = {"decode": [[1, 0.010], [4, 0.016]], "prompt_row": 0.001, "prompt_step": 0.005, "request": 0.002, "chunk": 512, "slots": 4,
         "kv_tokens": 100000, "share": [[1, 1]]}
SHAPE = {"groups": 1, "system": 64, "question": 16, "answer": 20, "turns": 3, "think": 0.5}


def test_a_user_alone():
    rate, firsts = fleet.simulate(COSTS, SHAPE, 1, 1, "least-load", 200, 0, 1)
    first, later = 0.002 + 0.005 + 80 * 0.001, 0.002 + 0.005 + 16 * 0.001
    assert firsts[0] == pytest.approx(first)  # nothing is known
    # a conversation begins with what all share; later turns add a question, and the answer before it
    known = [x for x in firsts[1:] if x == pytest.approx(later)]
    assert len(known) > len(firsts) / 4 and max(firsts) == pytest.approx(first)
    assert {round(x, 6) for x in firsts[1:]} == {round(later, 6), round(later + 20 * 0.001, 6)}
    assert 10 < rate < 1 / 0.010


def test_no_more_than_there_is():
    """However many users: a step of four rows makes four tokens."""
    for replicas in 1, 3:
        rate, _ = fleet.simulate(COSTS, {**SHAPE, "think": 0.01}, 40, replicas, "least-load", 60, 10, 2)
        assert 0.5 * replicas * 4 / 0.016 < rate < replicas * 4 / 0.016
    half = {**COSTS, "share": [[0.5, 0.5], [0.8, 0.8], [1, 1]]}  # cores that replicas share: one alone is faster
    alone, _ = fleet.simulate(half, {**SHAPE, "think": 0.01}, 40, 1, "least-load", 60, 10, 2)
    plain, _ = fleet.simulate(COSTS, {**SHAPE, "think": 0.01}, 40, 1, "least-load", 60, 10, 2)
    assert alone == pytest.approx(2 * plain, rel=0.1)


def test_routing_by_prefix_reads_less():
    shape = {**SHAPE, "groups": 6, "system": 512, "turns": 6, "think": 0.2}
    got = {p: fleet.simulate({**COSTS, "slots": 8}, shape, 24, 3, p, 120, 20, 3) for p in ("round-robin", "least-load", "prefix")}
    assert fleet.quantile(got["prefix"][1], 0.5) < fleet.quantile(got["round-robin"][1], 0.5)
    assert got["prefix"][0] > got["round-robin"][0]


def test_little_memory_forgets():
    many = fleet.simulate({**COSTS, "kv_tokens": 100}, SHAPE, 4, 1, "least-load", 60, 0, 1)[1]
    some = fleet.simulate(COSTS, SHAPE, 4, 1, "least-load", 60, 0, 1)[1]
    assert fleet.quantile(many, 0.5) > fleet.quantile(some, 0.5)
