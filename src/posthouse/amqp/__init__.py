"""An AMQP 1.0 peer in either role, without input or output; see `connection.py`.

Written from the OASIS specification of 2012-10-29; sections are cited as part.section, so 2.7.5 is
part 2 (transport), section 7.5.
"""
