"""Replace e-mail and IP addresses by reserved ones that belong to nobody."""

import dataclasses
import ipaddress
import re

from bertjax.data.filters import Filter

# Local part, at sign, domain with a dot; quoted local parts and Unicode addresses are not matched. A letter in another
# script may follow without a space, as Korean particles do. Local parts have at most 64 characters (RFC 5321), labels
# 63 (RFC 1035); the bounds also keep the search linear.
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![A-Za-z0-9])"
)
_IP = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")


@dataclasses.dataclass(frozen=True)
class Personal(Filter):
    """Replaces e-mail addresses and public IPv4 addresses, and counts them; it drops no document.

    Attributes:
      email: replacement for e-mail addresses; example.com is reserved (RFC 2606).
      ip: replacement for public IP addresses; 192.0.2.1 is reserved for documentation (RFC 5737).
    """

    kind: str = dataclasses.field(default="personal", init=False)
    email: str = "email@example.com"
    ip: str = "192.0.2.1"

    def rewrite(self, text: str) -> tuple[str, int]:
        changes = 0

        def replace(match: re.Match) -> str:
            nonlocal changes
            is_email = "@" in match[0]
            new = self.email if is_email else self.ip
            if match[0] == new or not (is_email or _is_public(match[0])):
                return match[0]
            changes += 1
            return new

        return _IP.sub(replace, _EMAIL.sub(replace, text)), changes


def _is_public(address: str) -> bool:
    try:
        return ipaddress.IPv4Address(address).is_global
    except ValueError:  # a number above 255, or with a leading zero
        return False
