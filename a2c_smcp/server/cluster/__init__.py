"""What only many nodes need: calls between nodes, and requests for sessions of another node."""
