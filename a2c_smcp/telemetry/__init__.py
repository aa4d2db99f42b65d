"""The view of a process from outside: metrics for Prometheus, and traces for OpenTelemetry."""
