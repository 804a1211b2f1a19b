"""Who is in an experiment: who enrolled and is there, whom to invite, what each has told."""
