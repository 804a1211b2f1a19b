"""Options that several commands share: data, model, task, update, masks."""
