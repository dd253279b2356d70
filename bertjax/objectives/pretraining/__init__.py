"""Self-supervised objectives, which need no labels. One file per idea."""
