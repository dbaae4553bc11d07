"""Accounts and namespaces: an account of AWS's is a namespace, and has twelve digits.

The default namespace is an account that is set; one whose name has twelve digits is that account;
any other has an account that is made of its name.
"""

import re
from hashlib import blake2b

from posthouse.broker.view import View
from posthouse.core.model import Account, Right

_DIGITS = re.compile(r"\d{12}", re.ASCII)
# Access key ids that are made up because a client must have one, and such as AWS gives out.
_FAKES = frozenset((
    "test", "testing", "tests", "dummy", "foo", "bar", "fake", "mock", "mocked", "key", "secret",
    "x", "xx", "xxx", "local", "localstack", "elasticmq", "none", "anything", "any", "root",
    "user", "id", "access", "accesskey", "access_key", "accesskeyid", "access_key_id",
    "aws_access_key_id", "my_access_key", "not-used", "notused", "unused", "default",
))  # fmt: skip
_REAL = re.compile(r"(?:AKIA|ASIA|LKIA|LSIA)[A-Z0-9]{12,}", re.ASCII)
RIGHTS: tuple[Right, ...] = ("send", "listen", "manage")


def account_of(namespace: str, default: str, default_account: str) -> str:
    if namespace == default:
        return default_account
    if _DIGITS.fullmatch(namespace):
        return namespace
    number = int.from_bytes(blake2b(namespace.encode(), digest_size=8).digest(), "big")
    return f"{number % 10**12:012}"


def namespace_of(account: str, view: View, default: str, default_account: str) -> str:
    """The namespace that an account is; empty where there is none such."""
    if account == default_account:
        return default
    if view.has_namespace(account):
        return account
    each = (name for name in view.namespaces() if name != default)
    return next((n for n in each if account_of(n, default, default_account) == account), "")


def is_made_up(key_id: str) -> bool:
    """Whether an access key id names nothing."""
    return bool(
        not key_id
        or key_id.lower() in _FAKES
        or _DIGITS.fullmatch(key_id)
        or _REAL.fullmatch(key_id)
    )


def home_of(account: Account | None, default: str) -> str:
    """The namespace of a principal: the only one that it has rights in, or the default one."""
    spaces = set() if account is None else {grant.namespace for grant in account.grants}
    if len(spaces) == 1:
        [only] = spaces
        if "*" not in only:
            return only
    return default
