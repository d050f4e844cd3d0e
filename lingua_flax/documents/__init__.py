"""Documents, from word processors to subtitles: what is in a file to translate, and the file with its translation."""

# The suffixes of their names; plain text is not among them.
DOCUMENTS = (".docx", ".odt", ".pptx", ".odp", ".epub", ".html", ".htm", ".srt", ".vtt", ".po", ".xlf", ".xliff")
