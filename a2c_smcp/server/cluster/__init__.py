"""Several nodes: shared offices, calls between nodes, and requests for sessions of another node."""
