"""What can go wrong outside of this program; always reported in a sentence."""


class DeploymentError(RuntimeError):
    """Something that the program depends on failed: a port, a process, a run."""


class DefectError(DeploymentError):
    """A part of this program failed for no reason that a user could mend; see its log."""
