"""Write the figures of the concept pages."""

from docs.diagrams import figures, path_of

for name, canvas in figures().items():
    path_of(name).write_text(canvas.svg())
