"""The hostile list with TLS between a server and its nodes: what must not happen in memory must not happen over https.

What only a transport sees (a stranger's key, ten gigabytes, slow-loris) is in transport/test_https_hostile.py.
"""

from __future__ import annotations

import itertools

import pytest

from deploy import loops
from deploy.node import test_hostile_server, test_lost_answers, test_lying_server, test_old_copies
from deploy.over_https import HttpsNetwork
from deploy.server import test_hostile_nodes, test_limits_reached

CASES = {
    **{
        f"{what} of a reply": (test_hostile_nodes.test_a_wrong_message_is_refused_alone, {"what": what})
        for what in test_hostile_nodes.WRONG
    },
    "replayed, tampered, stranger's": (
        test_hostile_nodes.test_strangers_repetitions_and_late_answers_change_nothing,
        {},
    ),
    "second offer for a round": (test_hostile_server.test_a_second_offer_for_a_round_is_refused, {}),
    "the same offer again": (test_hostile_server.test_after_a_restart_the_same_offer_gets_the_same_bytes, {}),
    "second run on a spent ledger": (test_hostile_server.test_a_node_stays_within_its_limit_over_all_runs, {}),
    "other terms at a node": (test_hostile_nodes.test_other_terms_at_a_node_are_refused, {}),
    "terms changed midway": (test_hostile_nodes.test_a_server_does_not_go_on_under_other_terms, {}),
    "hidden rounds": (
        test_lying_server.test_rounds_are_not_hidden_behind_a_history_that_is_called_longer_than_it_is,
        {"length": 4},
    ),
    "a lost answer": (test_lost_answers.test_after_a_lost_answer_the_next_step_is_answered_and_paid, {}),
    "an old copy": (
        test_old_copies.test_a_folder_restored_as_a_whole_is_found_by_what_the_server_holds,
        {"values": test_hostile_server.PFL},
    ),
    "spent budgets": (test_limits_reached.test_a_run_goes_on_while_enough_are_left, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_over_https(case, tmp_path, monkeypatch):
    networks, numbers = [], itertools.count()

    def network(register):
        networks.append(HttpsNetwork(register, tmp_path / f"tls{next(numbers)}"))
        return networks[-1]

    monkeypatch.setattr(loops, "MemoryNetwork", network)
    test, arguments = CASES[case]
    try:
        test(tmp_path=tmp_path / "federation", **arguments)
    finally:
        for one in networks:
            one.close()
    assert networks
