"""Everything that agents read from a computer: resources, prompts, desktops, blobs, skills."""
