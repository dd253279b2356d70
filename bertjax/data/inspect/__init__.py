"""What a token store holds, as people look at it: a report, histograms of lengths, printed rows."""
