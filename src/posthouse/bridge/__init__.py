"""The bridge: an outbox, an inbox, consumers and a topology for services that exchange events."""
