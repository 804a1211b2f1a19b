"""The gateway (nginx) before the SuperLink."""
