"""Forecasts for TPUs that are not there: what the compiler says about a step's memory, traffic and shortest time."""
