"""What the terminal shows of a service beside its events."""

from __future__ import annotations

import logging
import os
import signal

from cloister.cli.service import Service


def test_a_nodes_operator_sees_that_the_server_is_away_and_how_to_stop_at_once(tmp_path, capfd):
    with Service("node", tmp_path, None, "info", False) as service:
        logging.getLogger("cloister.deploy.https").info("asked again")
        logging.getLogger("cloister.deploy.https").warning("The server did not answer")
        os.kill(os.getpid(), signal.SIGINT)
        assert service.stop.is_set()
    logging.getLogger("cloister.deploy.https").warning("afterwards")
    shown = capfd.readouterr().err
    assert "The server did not answer" in shown
    assert "Ctrl-C again ends at once" in shown
    assert "asked again" not in shown
    assert "afterwards" not in (tmp_path / "log.jsonl").read_text()
