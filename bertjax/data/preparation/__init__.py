"""From a corpus to a token store.

    documents --reading--> shards of text --encoding--> shards of tokens --assembly--> token store

`prepare` is the entrance: it names the store, locks it, resumes an unfinished preparation and publishes the result.
`steps` holds what is computed of documents, without files, `local` the runner that does it with processes of one
machine. A document is known by its `Key` (source, part, number), which sorts as the corpus does, so a runner may handle
documents in any order and on any number of machines: the store has the same bytes.
"""
