"""HTTPS does what every transport does."""

from __future__ import annotations

import pytest

from deploy.transport.conformance import TransportConformance
from deploy.transport.https_network import https_network


class TestHttps(TransportConformance):
    @pytest.fixture
    def network(self):
        with https_network() as network:
            yield network
