"""`report.html`: sections, figures, tables and an attention viewer in one file that works offline."""
