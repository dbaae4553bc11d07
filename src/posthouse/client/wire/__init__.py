"""A Posthouse broker over AMQP 1.0, with the same sans-IO peer that the broker has.

`connection.py` is one connection; `sending.py` and `receiving.py` are its links; `asking.py` asks
what is asked for and answered in messages; `messages.py` is what they look like; `provider.py` puts
them together, and goes on after a connection was lost.
"""
