"""Maps from namespaces to brokers: what they say, and what is refused."""

from pathlib import Path

import pytest

from posthouse import ConfigurationError, PosthouseConfig, QueueConfig, create_client
from posthouse.client.namespace_map import MAP_BYTES_MAX, broker_of, located
from posthouse.pipeline.options import READING, Options
from posthouse.pipeline.wire import FeedClient, PosthouseError

CANARY = "canary0123456789"
MAP = f"""
shop: posthouse://web:{CANARY}@a:7001
billing: posthouses://web:{CANARY}@b
"*": posthouse://c:7003?prefetch=9
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "namespaces.yaml"
    made.write_text(MAP)
    return made


def provider(url: str) -> PosthouseConfig:
    found = QueueConfig.from_url(url).provider
    assert isinstance(found, PosthouseConfig)
    return found


def test_the_map_says_where_a_namespace_is(file: Path) -> None:
    assert located(provider(f"posthouse:///shop?map={file}&prefetch=5")) == PosthouseConfig(
        "a", 7001, "web", CANARY, "shop", prefetch=5
    )
    billing = PosthouseConfig("b", 5671, "web", CANARY, "billing", tls=True)
    assert located(provider(f"posthouse:///billing?map={file}")) == billing


def test_a_namespace_without_a_line_is_where_all_others_are(file: Path) -> None:
    assert located(provider(f"posthouse:///x?map={file}")) == PosthouseConfig(
        "c", 7003, namespace="x"
    )
    assert located(provider(f"posthouse://?map={file}")).namespace == "default"


def test_settings_without_a_map_stay_as_they_are() -> None:
    config = PosthouseConfig("a", 7001, namespace="shop")
    assert located(config) is config


def test_the_environment_names_a_map(file: Path) -> None:
    environment = {
        "POSTHOUSE_CLIENT_URL": "posthouse:///shop", "POSTHOUSE_CLIENT_MAP": str(file),
    }  # fmt: skip
    config = QueueConfig.from_environment(environment).provider
    assert isinstance(config, PosthouseConfig)
    assert located(config).host == "a"


def test_a_map_may_be_json_and_is_read_anew(file: Path) -> None:
    config = provider(f"posthouse:///shop?map={file}")
    assert located(config).host == "a"
    file.write_text('{"shop": "posthouse://d:7004"}')
    assert located(config) == PosthouseConfig("d", 7004, namespace="shop")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("billing: posthouse://b", "no broker for the namespace 'shop'"),
        ("shop: 7", "no URL for 'shop'"),
        (f"shop: sb://web:{CANARY}@b", "begins with posthouse"),
        (f"shop: posthouse://web:{CANARY}@b/other", "without a namespace"),
        ("shop: posthouse://?map=other.yaml", "without a namespace and without a map"),
        (f"shop: posthouse://web:{CANARY}@b:x", "wrong URL for 'shop'"),
        (f"shop: posthouse://web:{CANARY}@b?colour=red", "colour"),
        (f"- {CANARY}", "holds no map"),
        ("", "holds no map"),
        (f"shop: [{CANARY}", "neither YAML nor JSON"),
        ("\0", "neither YAML nor JSON"),
        ("#" * MAP_BYTES_MAX + "\n", f"more than {MAP_BYTES_MAX} bytes"),
    ],
)
def test_what_is_missing_or_wrong_in_a_map_is_said_without_keys(
    file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=said) as caught:
        create_client(f"posthouse:///shop?map={file}")
    assert str(file) in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_map_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml cannot be read: No such file"):
        broker_of(str(tmp_path / "none.yaml"), "shop")


@pytest.mark.parametrize("rest", ["host/shop?", "me:k@/shop?", "/shop?ca_file=x&"])
def test_a_map_goes_without_what_it_says_itself(file: Path, rest: str) -> None:
    with pytest.raises(ConfigurationError, match="goes without host, key and ca_file"):
        QueueConfig.from_url(f"posthouse://{rest}map={file}")


def reading(**given: str) -> Options:
    return Options(given, READING)


def test_the_pipeline_reads_the_same_map(file: Path) -> None:
    shop = reading(map=str(file), namespace="shop", queue="orders").broker()
    assert shop == FeedClient("http://a:7001", "web", CANARY)
    assert reading(map=str(file), queue="orders").broker() == FeedClient("http://c:7003")
    billing = reading(map=str(file), namespace="billing").broker()
    assert billing == FeedClient("https://b:5671", "web", CANARY)


def test_a_namespace_may_be_on_a_cluster(file: Path) -> None:
    file.write_text("shop: posthouse://h1,h2:7002\nsix: posthouse://[::1]:7003")
    shop = located(provider(f"posthouse:///shop?map={file}"))
    assert shop.addresses == (("h1", 5672), ("h2", 7002))
    found = [reading(map=str(file), namespace=name).broker().url for name in ("shop", "six")]
    assert found == ["http://h1:5672", "http://[::1]:7003"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "goes with namespace"),
        ({"namespace": "shop", "url": "http://a"}, "map and url do not go together"),
        ({"namespace": "shop", "accessKey": "k"}, "map and accessKey do not go together"),
    ],
)
def test_the_pipeline_says_what_does_not_go_with_a_map(
    file: Path, given: dict[str, str], said: str
) -> None:
    with pytest.raises(PosthouseError, match=said):
        reading(map=str(file), **given).broker()


def test_the_pipeline_says_what_is_missing_in_a_map(file: Path) -> None:
    file.write_text("billing: posthouse://b")
    with pytest.raises(PosthouseError, match="no broker for the namespace 'shop'"):
        reading(map=str(file), namespace="shop").broker()
