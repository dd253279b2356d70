"""Text: splitting into sentences, words of tokens, collocations, and lexicons of phrases."""
