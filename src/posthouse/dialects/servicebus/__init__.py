"""Azure Service Bus over AMQP 1.0; `peer.py` is one connection."""

WEBSOCKET_PATH, WEBSOCKET_NAME = "/$servicebus/websocket", "AMQPWSB10"
