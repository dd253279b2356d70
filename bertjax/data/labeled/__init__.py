"""Labeled examples: files of sentences, pairs or questions with the labels that fine-tuning learns.

file --read--> records --encode--> examples --plan--> rows
"""
