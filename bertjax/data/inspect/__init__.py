"""Views of a token store for people: a report, histograms of lengths, printed rows."""
