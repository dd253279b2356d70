"""Text before tokens: sentences, words, phrases that occur together, and lexicons of them."""
