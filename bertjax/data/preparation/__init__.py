"""From a corpus to a token store.

    documents --reading--> shards of text --encoding--> shards of tokens --assembly--> token store

- `prepare` is the entry point. It names the store, locks it, runs the stages in order, resumes them after a kill, and
  publishes the result.
- `pieces` reads the corpus files in any order. `cleaning` applies filters on the way and counts documents as they are
  read and as they leave (an incomplete store is never published); `duplicates` finds more documents to drop.
- `steps` holds pure functions on documents.
- `local` runs the steps in processes on one machine; `beam` runs them on many.

A document is identified by its `Key` (source, part, number). Keys sort in corpus order, so a runner may process
documents in any order, on any machines, and still write the same bytes.
"""
