"""Forecasts for TPUs that are not there: a step's memory, collectives and shortest time, from the compiler alone."""
