"""Events over NATS JetStream. nats-py is imported only here, and only when a URL asks for it."""
