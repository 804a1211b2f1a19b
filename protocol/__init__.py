"""The terms of a run, the policy of a data owner, and the messages between them."""
