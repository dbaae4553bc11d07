"""LocalZure's HTTP API, under /servicebus: JSON for messages, XML for entities.

Its documents and its program spell the paths in two ways, and both are served:

    /servicebus/{namespace}/{queue}...            /servicebus/queues/{queue}...
    /servicebus/{namespace}/topics/{topic}...     /servicebus/topics/{topic}...
"""
