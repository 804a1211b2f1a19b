"""A server and its clients, set up by the guide's own commands."""

import json

from coinflower.deploy.machines.status_file import is_server_folder
from coinflower.server.journal import read_metrics
from tests.hosts.network import wait_until
from tests.support.documents import block


class Federation:
    """A server and some clients, each on a host of its own."""

    def __init__(self, server, clients, *, rounds, listen="0.0.0.0", names=()):
        self.server = server
        self.clients = clients
        self.rounds = rounds
        self.running = None
        self._listen = listen
        self._names = names

    def set_up(self, *changes):
        """Start everything; ``changes`` are what the settings say instead of the guide's."""
        server = self.server
        (server.folder / "settings.toml").write_text(block("settings.toml"))
        self.change(*changes)
        server.run(block("server keys") + "".join(f" --name {name}" for name in self._names))
        server.run(block("server firewall"))
        self.serve()
        for index, client in enumerate(self.clients):
            self.equip(client, index)
            client.start(self.client_line(client), "client.log")

    def client_line(self, client):
        """Return the command by which a client joins."""
        return block("client run", client.name)

    def equip(self, client, index):
        """Exchange keys with a client, and give it a policy and a ledger."""
        client.run(block("client keys", client.name))
        public = (client.folder / "keys" / f"{client.name}.pub").read_bytes()
        (self.server.folder / f"{client.name}.pub").write_bytes(public)
        authority = (self.server.folder / "keys" / "ca.pem").read_bytes()
        (client.folder / "ca.pem").write_bytes(authority)
        self.server.run(block("server allow", client.name))
        (client.folder / "policy.toml").write_text(block("policy.toml", client.name, index))
        client.run(block("client ledger", client.name))

    def serve(self, *options):
        line = block("server run").replace("--listen 0.0.0.0:", f"--listen {self._listen}:")
        line = " ".join([line, *options])
        self.running = self.server.start(line, "server.log")

    def change(self, *changes):
        """Change the settings that the next start of the server reads."""
        path = self.server.folder / "settings.toml"
        settings = path.read_text()
        for before, after in changes:
            assert before in settings, before
            settings = settings.replace(before, after)
        assert f"rounds = {self.rounds}\n" in settings
        path.write_text(settings)

    def status(self):
        return json.loads(self.server.run("coinflower status superlink --json").stdout)

    def round(self):
        rows = read_metrics(self.server.folder / "state")
        return rows[-1]["round"] if rows else 0

    def all_online(self):
        known = is_server_folder(self.server.folder / "superlink")
        return known and self.status()["online"] == len(self.clients)

    def require_alive(self):
        """Check that rounds go on being played, or all were."""
        before = self.round()
        if self.running.poll() == 0 and before == self.rounds:
            return
        assert self.running.poll() is None, self.server.log("server.log")
        wait_until(lambda: self.round() > before, "a further round")
