"""A map from namespaces to brokers, for namespaces that are spread over several of them.

It is a file of YAML or JSON, one line for each namespace, and `*` for all that are not named:

    shop: posthouses://web:KEY@a.example.com
    billing: posthouses://web:KEY@b.example.com
    "*": posthouses://web:KEY@a.example.com

It is read whenever a client connects. So a namespace moves to another broker when the file is
replaced, and clients follow when they lose their connection.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from posthouse.client.config import PosthouseConfig, QueueConfig
from posthouse.client.errors import ConfigurationError

FIELD = "map"
OTHERS = "*"
DEFAULT_NAMESPACE = "default"
MAP_BYTES_MAX = 1 << 20
_FORM = "a line of it looks like `shop: posthouse://NAME:KEY@HOST`"


def located(config: PosthouseConfig) -> PosthouseConfig:
    """Returns the settings with the address and credentials of their namespace's broker.

    They are returned as they are where there is no map. Raises ConfigurationError.
    """
    if not config.map:
        return config
    namespace = config.namespace or DEFAULT_NAMESPACE
    broker = broker_of(config.map, namespace)
    return replace(
        config, host=broker.host, port=broker.port, key_name=broker.key_name, key=broker.key,
        tls=broker.tls, ca_file=broker.ca_file, namespace=namespace, map="",
    )  # fmt: skip


def broker_of(path: str, namespace: str) -> PosthouseConfig:
    """Returns the settings that a map gives for a namespace. Raises ConfigurationError."""
    brokers = _read(path)
    url = brokers.get(namespace, brokers.get(OTHERS))
    if url is None:
        raise ConfigurationError(
            FIELD,
            f"{path} has no broker for the namespace {namespace!r}, and none for {OTHERS!r},"
            f" which stands for all others; {_FORM}",
        )
    line = namespace if namespace in brokers else OTHERS
    if not isinstance(url, str):
        raise ConfigurationError(FIELD, f"{path} has no URL for {line!r}; {_FORM}")
    try:
        found = QueueConfig.from_url(url).provider
    except ConfigurationError as error:  # whose text shows no key
        raise ConfigurationError(
            FIELD, f"{path} has a wrong URL for {line!r}: {error}".removesuffix(".")
        ) from None
    if not isinstance(found, PosthouseConfig):
        raise ConfigurationError(
            FIELD, f"{path} must have a URL for {line!r} that begins with posthouse(s)://"
        )
    if found.namespace or found.map:
        raise ConfigurationError(
            FIELD,
            f"{path} must have a URL for {line!r} without a namespace and without a map: the line"
            " says the namespace",
        )
    return found


def _read(path: str) -> dict[object, Any]:
    """Returns the lines of a map. Raises ConfigurationError, without what stands there."""
    import yaml  # not needed by a client without a map

    try:
        with Path(path).open("rb") as file:
            data = file.read(MAP_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(FIELD, f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAP_BYTES_MAX:
        raise ConfigurationError(FIELD, f"{path} has more than {MAP_BYTES_MAX} bytes")
    try:
        content: object = yaml.safe_load(data)  # of which JSON is a part
    except (yaml.YAMLError, ValueError, RecursionError):  # whose texts may show a key
        raise ConfigurationError(FIELD, f"{path} is neither YAML nor JSON; {_FORM}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(FIELD, f"{path} holds no map; {_FORM}")
    return cast("dict[object, Any]", content)
