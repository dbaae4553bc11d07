"""What providers can do, as docs/client.md has it. Who cannot, says `Unsupported`."""

from posthouse.client.provider import ProviderType

POSTHOUSE, MEMORY = ProviderType.POSTHOUSE, ProviderType.IN_MEMORY
AZURE, SQS = ProviderType.AZURE_SERVICE_BUS, ProviderType.AWS_SQS

COLUMNS = (POSTHOUSE, MEMORY, AZURE, SQS)
PROVIDERS = COLUMNS

TABLE: dict[str, tuple[str, str, str, str]] = {
    "Sessions": ("native", "native", "native", "emulated"),
    "A session without messages, by its name": ("yes", "yes", "yes", "no"),
    "State of a session": ("yes", "yes", "yes", "no"),
    "Messages in one send": ("10,000", "10,000", "100", "10"),
    "Messages in one receive": ("10,000", "10,000", "100", "10"),
    "Bytes of a message": ("1,048,576", "10,485,760", "1,048,576", "262,144"),
    "Scheduling": ("yes", "yes", "yes", "no"),
    "Deferring": ("yes", "yes", "yes", "no"),
    "Peeking": ("yes", "yes", "yes", "no"),
    "Transactions": ("yes", "yes", "no", "no"),
    "Time to live of a message": ("yes", "yes", "yes", "no"),
    "Empty bodies": ("yes", "yes", "yes", "no"),
    "Subject, to, reply-to of a message": ("yes", "yes", "yes", "yes"),
    "Delay of a message": ("yes", "yes", "yes", "15 minutes"),
    "Priority of a message": ("yes", "yes", "no", "no"),
    "Partition key of a message": ("yes", "yes", "yes", "no"),
    "Attributes that are numbers, truths, UUIDs": ("yes", "yes", "yes", "yes"),
    "Attributes that are bytes or times": ("yes", "yes", "no", "yes"),
    "Topics and subscriptions": ("yes", "yes", "yes", "no"),
    "Administration": ("yes", "yes", "yes", "queues"),
    "Release without counting": ("yes", "yes", "no", "no"),
    "Equal ids are one message": ("by queue", "by queue", "by queue", "FIFO"),
    "Dead letters are resubmitted": (
        "at once",
        "at once",
        "sent, then removed",
        "sent, then removed",
    ),
}


def can(kind: ProviderType, feature: str) -> bool:
    return TABLE[feature][COLUMNS.index(kind)] != "no"
