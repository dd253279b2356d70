"""Text processing: sentence splitting, Unicode properties, word units, n-gram hashes, phrases, augmentation."""
