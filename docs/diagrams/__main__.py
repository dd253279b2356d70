"""Write the figures of the pages."""

from docs.diagrams import figures, path_of

for page, canvas in figures().items():
    path_of(page).write_text(canvas.svg())
