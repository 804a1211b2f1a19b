"""A federation in mode masked, with a notary on a host of its own."""

import json

from tests.hosts.federation import Federation
from tests.support.documents import block


class MaskedFederation(Federation):
    """A server, some clients, and a notary, set up as the guide says."""

    def __init__(self, server, clients, notary, *, rounds):
        super().__init__(server, clients, rounds=rounds)
        self.notary = notary
        self.working = None

    def set_up(self, *changes):
        self.notary.run(block("notary create"))
        key = self._made("notary.pub").decode().split()[1]
        terms = block("masked terms")
        example = terms.partition('notaries = ["')[2][:64]
        super().set_up(*changes, ('mode = "trusted"', terms.replace(example, key)))
        authority = (self.server.folder / "keys" / "ca.pem").read_bytes()
        (self.notary.folder / "ca.pem").write_bytes(authority)
        (self.server.folder / "notary-node.pub").write_bytes(self._made("notary-node.pub"))
        self.server.run(block("notary node"))
        self.open_office()

    def equip(self, client, index):
        super().equip(client, index)
        public = (client.folder / "keys" / f"{client.name}.pub").read_bytes()
        (self.notary.folder / f"{client.name}.pub").write_bytes(public)
        self.notary.run(block("notary allow", client.name))
        (client.folder / "notary.pub").write_bytes(self._made("notary.pub"))
        policy = client.folder / "policy.toml"
        masked = block("masked policy", client.name)
        policy.write_text(policy.read_text().replace('modes = ["trusted"]', masked))

    def open_office(self):
        """Start the notary."""
        self.working = self.notary.start(block("notary run"), "notary.log")

    def opened(self):
        """Return what the notary says that it has opened."""
        told = self.notary.run("coinflower notary show --folder notary --json").stdout
        return json.loads(told)

    def _made(self, name):
        return (self.notary.folder / "notary" / name).read_bytes()
