"""Tool calls of agents: from their arrival to a result that may leave, and at most one run for each."""
