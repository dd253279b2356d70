"""`report.html`: sections, figures, tables and a viewer of attention maps in one file that opens without a network."""
