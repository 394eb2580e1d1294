"""The server of a federation: its loop, its files, its status."""

from cloister.deploy.server.serve import ServerResult, serve
from cloister.deploy.server.status import server_status

__all__ = ["ServerResult", "serve", "server_status"]
