"""From a corpus to a token store.

    documents --reading--> shards of text --encoding--> shards of tokens --assembly--> token store

`prepare` is the entry point: it names the store, locks it, builds it and publishes the result. `pieces` reads the files
of a corpus in any order, `cleaning` applies filters meanwhile, `duplicates` and `near_duplicates` find those that are
dropped. `ledger` counts what is read and where it goes, and no store is made that lacks something. `steps` has the pure
functions of documents. `building` has the order of a preparation, which resumes after a kill. `local` is the runner
that applies the steps with processes of one machine; `beam` applies those of `pieces` and `parts` on many.

A document is identified by its `Key` (source, part, number). Keys sort in the order of the corpus, so a runner may
handle documents in any order and on any number of machines, and the store has the same bytes.
"""
