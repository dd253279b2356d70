"""Human-readable views on a token store: a report, length histograms, printed rows."""
