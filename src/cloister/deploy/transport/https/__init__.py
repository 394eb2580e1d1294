"""The built-in transport: one HTTPS server, nodes that poll it."""

from cloister.deploy.transport.https.limits import HttpsLimits, TlsFiles
from cloister.deploy.transport.https.node import HttpsNode
from cloister.deploy.transport.https.server import HttpsServer

__all__ = ["HttpsLimits", "HttpsNode", "HttpsServer", "TlsFiles"]
