"""The server: sockets, HTTP, configuration, and the engine behind them."""
