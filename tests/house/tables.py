"""What is known and allowed, each with its reason or its ceiling."""

# Why a class has more than twenty attributes.
LARGE_CLASSES = {
    "amqp/connection.py:Connection": "both roles of AMQP's connection, with what each has agreed",
    "amqp/session.py:Link": "the state that AMQP itself gives a link (2.6)",
    "bridge/settings.py:Settings": "settings: a field for each",
    "broker/engine.py:Engine": "the single writer; each part of it is one attribute",
    "broker/rows.py:Row": "the columns of the feed",
    "core/model.py:Queue": "state: a field for each thing that a queue has in the journal",
    "core/model.py:QueueProperties": "settings: a field for each",
    "core/model.py:State": "state: a field for each thing that a namespace has in the journal",
    "dialects/pyqueue/peer.py:Peer": "one connection: its bytes, its turns, its answers in order",
    "dialects/servicebus/peer.py:Peer": "one connection: its bytes, its deadlines, its links",
    "dialects/vibemq/peer.py:Peer": "one connection: its bytes, its deadlines, its subscriptions",
    "server/cluster.py:ClusterNode": "a node in its cluster; each deed of it is one attribute",
    "server/config.py:Config": "settings: a field for each",
    "server/http_peer.py:HttpPeer": "one connection: the request that is read, and its bounds",
    "store/file.py:FileStore": "segments, their room, the writer and its figures",
    "store/replicated.py:ReplicatedStore": "the log, the folder, and what is between the two",
}
