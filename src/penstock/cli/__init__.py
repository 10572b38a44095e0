"""The command line: one file per verb. A verb parses, calls and prints."""
