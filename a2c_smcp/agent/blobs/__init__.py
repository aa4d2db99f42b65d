"""Large contents in chunks: what an agent fetches from computers, and the files that it sends to them."""
