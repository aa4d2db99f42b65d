"""Who may call which tool with which arguments, and how often: the owner's rules, and the one place that decides."""
