"""What a registry offers to read: resources, templates of resources, prompts, and completion of their arguments."""
